"""Entry point of the command: can be interrupted while modules are still loading.

Nothing but this is imported before it begins, as a Ctrl-C has no answer until then.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """``cli.main.main``; a Ctrl-C during the imports is one without a traceback."""
    try:
        from rbtrace_py.cli.main import main as run
    except KeyboardInterrupt:
        import sys

        sys.stderr.write("rbtrace-py: interrupted\n")
        sys.exit(130)
    run()
