"""Entry point of the command, which handles Ctrl-C while modules are loading.

No other module is imported before ``main``, because Ctrl-C is unhandled until then.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run ``cli.main.main``; a Ctrl-C during the imports prints no traceback."""
    try:
        from rbtrace_py.cli.main import main as run
    except KeyboardInterrupt:
        import sys

        sys.stderr.write("rbtrace-py: interrupted\n")
        sys.exit(130)
    run()
