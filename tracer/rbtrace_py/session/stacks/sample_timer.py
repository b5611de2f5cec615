"""The sampling timer: starts passes at a rate, and counts late passes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rbtrace_py.aggregate.sampling import Statistics


class SampleTimer:
    """Starts ``rate`` passes per second, each at a random moment of its period.

    With regular passes, a program that acts at the same rate would be sampled always
    or never during that action. A pass that starts more than half a period late counts
    as late, and so does each period that ends before its pass could start.

    Attributes:
        began: Start of the last pass, by ``clock`` in ns.
    """

    def __init__(
        self,
        rate: float,
        statistics: Statistics,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._period = round(1e9 / rate)
        self._statistics = statistics
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random().random
        self._start = self.began = clock()
        self._due = self._start + int(self._random() * self._period)

    def wait(self, until: int) -> bool:
        """Sleep until the next pass is due.

        A pass that is due before ``until`` runs even if the busy machine starts it
        later. Without this pass, the time since the last pass would have no sample.

        Args:
            until: Time of the monotonic clock, in ns.

        Returns:
            False if the next pass is due after ``until``.
        """
        # Inline on purpose: at 100 passes per second, the code of every called
        # function is out of the CPU's caches.
        due, clock = self._due, self._clock
        is_due = due < until
        wanted = due if is_due else until
        now = clock()
        while now < wanted:
            self._sleep((wanted - now) / 1e9)
            now = clock()
        if not is_due:
            return False
        period, statistics = self._period, self._statistics
        self.began = now
        statistics.rounds += 1
        # The current period may still have its own pass.
        missed = (now - self._start) // period - 1
        if missed < 0:
            missed = 0
        if (now - due) * 2 > period:
            statistics.late += missed or 1
        start = self._start = self._start + period * (missed + 1)
        self._due = start + int(self._random() * period)
        return True

    def end(self) -> None:
        """Count periods that ended without a pass as late."""
        missed = max((self._clock() - self._start) // self._period, 0)
        self._statistics.late += missed
        self._start += missed * self._period
