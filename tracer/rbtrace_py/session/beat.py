"""The rhythm of a sampler: rounds at a rate, and how many came late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rbtrace_py.aggregate.sampling import Statistics


class Beat:
    """Rounds at ``rate`` a second, each at a random moment of its own period.

    Random, since a program that does something as regularly would be seen at it
    always or never. A round that begins more than half a period late counts as late,
    and so does each period that is over before its round could begin.

    began: when the last round did, by the clock
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
        self._due = self._moment()

    def wait(self, until: int) -> bool:
        """Sleep until the next round is due; False if ``until`` comes first.

        ``until`` is a time of the monotonic clock, in ns. A round that did not come
        is still due.
        """
        due = min(self._due, until)
        now = self._clock()
        while now < due:
            self._sleep((due - now) / 1e9)
            now = self._clock()
        if now >= until:
            return False
        self._begin(now)
        return True

    def _begin(self, now: int) -> None:
        self.began = now
        # The period that we are in now may still have its own round.
        missed = max(0, (now - self._start) // self._period - 1)
        if (now - self._due) * 2 > self._period:
            self._statistics.late += max(1, missed)
        self._statistics.rounds += 1
        self._start += self._period * (missed + 1)
        self._due = self._moment()

    def _moment(self) -> int:
        """A moment of the period that begins at ``_start``."""
        return self._start + int(self._random() * self._period)
