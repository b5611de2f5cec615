"""Pauses of a loop that polls another process."""

from __future__ import annotations

import time


class Backoff:
    """Pauses that grow with the time waited: a tenth of it, between two bounds.

    The loop notices late by a tenth of the time at most, and a long wait costs little
    CPU.

    Args:
        shortest: Seconds of the first pause.
        longest: Longest pause in seconds.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._began = time.monotonic()

    def pause(self) -> float:
        """Return how many seconds to pause now."""
        waited = time.monotonic() - self._began
        return min(max(self._shortest, waited / 10), self._longest)
