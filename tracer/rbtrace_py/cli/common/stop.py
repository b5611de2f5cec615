"""Ctrl-C, SIGTERM and a terminal that hangs up: a wish to end with the result."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from rbtrace_py.linux import stop_signal


class Interrupted(Exception):
    """Ctrl-C, or a signal with the same effect, before there was a result."""


def is_ignored(number: int) -> bool:
    """Were we started so that hanging up does not matter, as by nohup?

    SIGINT is not asked about: shells ignore it for what runs in the
    background, and yet somebody who sends it means it.
    """
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class Stop:
    """While entered, the first signal asks for the end; a second one insists."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def is_asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        """Somebody wishes it otherwise than by a signal."""
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
