"""The distance between the kernel's clocks."""

from __future__ import annotations

import time

_TRIES = 16


def wall_offset() -> int:
    """Return CLOCK_REALTIME minus CLOCK_MONOTONIC, in ns.

    This thread may lose its CPU between two reads, for milliseconds on a busy machine.
    So the clocks are read several times, and the shortest try counts.
    """
    found = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]
