"""Ctrl-C and SIGTERM, as a wish to end with the result."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Stop:
    """While entered, the first signal asks for the end; a second one insists."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def is_asked(self) -> bool:
        return self._asked

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
