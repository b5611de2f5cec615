"""A terminal's alternate screen, and keys as they are typed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rbtrace_py.linux.closing import Closing

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""Enter the alternate screen, hide the cursor, and clear the screen."""
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"


class Screen(Closing):
    """The terminal of standard output, which shows only lines given to ``show``.

    Use it in ``with``. The terminal is restored at the end of the block, even after an
    error, and while the process is stopped (Ctrl-Z).
    """

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        self._before: Any = None
        self._is_taken = False

    def __enter__(self) -> Screen:
        # Install the handler first: a Ctrl-Z must not leave a changed terminal.
        self._before = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            self._take()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Restore the terminal. A second call does nothing."""
        self._give_back()
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
            self._before = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows; a terminal of unknown size has 80 and 24."""
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            return columns or 80, rows or 24
        return 80, 24

    def show(self, lines: Sequence[str]) -> None:
        """Replace the content of the screen by lines, from the top."""
        text = "\x1b[K\r\n".join(lines)
        sys.stdout.write(f"\x1b[H{text}\x1b[K\x1b[J")
        sys.stdout.flush()

    def keys(self) -> str:
        """Return the keys that were typed since the last call."""
        if self._modes is None or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        with contextlib.suppress(OSError):
            return os.read(sys.stdin.fileno(), 256).decode("utf-8", "replace")
        return ""

    def _take(self) -> None:
        self._is_taken = True
        if sys.stdin.isatty():
            self._modes = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _give_back(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        # If the terminal has hung up, there is nothing to restore.
        if self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
            self._modes = None
        with contextlib.suppress(OSError):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop at Ctrl-Z as any program does, and take the terminal again later."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
