"""Where the command begins: what can be interrupted while it is still being read."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """``cli.main.main``; a Ctrl-C during the imports is one without a traceback."""
    try:
        from rbtrace_py.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("rbtrace-py: interrupted\n")
        sys.exit(130)
    run()
