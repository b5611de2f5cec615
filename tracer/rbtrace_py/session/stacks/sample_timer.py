"""The sampling timer: passes at a rate, and how many came late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rbtrace_py.aggregate.sampling import Statistics


class SampleTimer:
    """Sampling passes at ``rate`` a second, each at a random moment of its own period.

    Random, since a program that does something as regularly would be seen at it
    always or never. A pass that begins more than half a period late counts as late,
    and so does each period that is over before its pass could begin.

    began: when the last pass did, by the clock
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
        """Sleep until the next pass is due. Return False if that is after ``until``.

        ``until`` is a time of the monotonic clock, in ns. A pass that is due before it
        begins even if the machine is so busy that it begins later. Without it, the time
        since the last pass would have no sample.
        """
        # All in one piece: at 100 passes a second every function that is called has
        # to be fetched from memory again.
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
        # The period that we are in now may still have its own pass.
        missed = (now - self._start) // period - 1
        if missed < 0:
            missed = 0
        if (now - due) * 2 > period:
            statistics.late += missed or 1
        start = self._start = self._start + period * (missed + 1)
        self._due = start + int(self._random() * period)
        return True

    def end(self) -> None:
        """Count the periods as late that are over and had no pass."""
        missed = max((self._clock() - self._start) // self._period, 0)
        self._statistics.late += missed
        self._start += missed * self._period
