"""Pauses of a loop that polls another process."""

from __future__ import annotations

import time


class Backoff:
    """Growing pauses: a tenth of the time waited so far, between two bounds.

    The loop notices a change at most a tenth of the time late, and a long wait costs
    little CPU.

    Args:
        shortest: First pause in seconds.
        longest: Longest pause in seconds.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._began = time.monotonic()

    def pause(self) -> float:
        """Return the seconds to pause now."""
        waited = time.monotonic() - self._began
        return min(max(self._shortest, waited / 10), self._longest)
