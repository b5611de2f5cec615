"""Requests to end with a result: Ctrl-C, SIGTERM, and a hangup of the terminal."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from rbtrace_py.linux import stop_signal


class Interrupted(Exception):
    """Ctrl-C, or a signal with the same effect, before there was a result."""


def is_ignored(number: int) -> bool:
    """Return whether we were started to survive a hangup, as by nohup.

    SIGINT is not checked. Shells ignore it in background processes, but a user who
    sends it means it.
    """
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class Stop:
    """Handler of signals in ``with``: the first one requests the end.

    The second one raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def is_asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        """Request the end without a signal."""
        self._asked = True

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if not is_ignored(number):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        stop_signal.record()
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
