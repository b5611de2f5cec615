"""What walking stacks at events costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rbtrace_py.model.counters import Counter

MOST_SHARE = 0.05
"""Of a CPU that walking at events may take, unless more was accepted."""
_WINDOW_SECONDS = 1.0


class EventCost:
    """What events cost the targets, by the second.

    entry_ns: of an event before and after the program runs
    counters: those of the walker, now
    clock: monotonic, in seconds

    hits, ns, seconds: events of the first second that had some, and what they took; of
        the second in which it was too much, once it was
    is_known: is there such a second?
    is_too_high: was it more than MOST_SHARE in any second?
    """

    def __init__(
        self,
        entry_ns: int,
        counters: Callable[[], Mapping[Counter, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entry_ns = entry_ns
        self._counters = counters
        self._clock = clock
        self._began = clock()
        self._before = counters()
        self.hits = 0
        self.ns = 0
        self.seconds = 0.0
        self.is_known = self.is_too_high = False

    @property
    def share(self) -> float:
        """Part of a CPU, 1 being all of one."""
        return self.ns / 1e9 / self.seconds if self.seconds else 0.0

    @property
    def ns_each(self) -> float:
        return self.ns / self.hits if self.hits else 0.0

    def measure(self, is_last: bool = False) -> None:
        """Look at what came since; some ten times a second.

        is_last: there will be no other time
        """
        now, counters = self._clock(), self._counters()
        hits = counters[Counter.HITS] - self._before[Counter.HITS]
        spent = counters[Counter.SPENT] - self._before[Counter.SPENT]
        ns, seconds = spent + hits * self._entry_ns, now - self._began
        most = MOST_SHARE * 1e9 * max(seconds, _WINDOW_SECONDS)
        is_too_high = ns > most and not is_last
        is_over = is_too_high or is_last or seconds >= _WINDOW_SECONDS
        is_news = not self.is_known or is_too_high > self.is_too_high
        if hits and is_over and is_news:
            self.hits, self.ns, self.seconds = hits, ns, seconds
            self.is_known, self.is_too_high = True, is_too_high
        if seconds >= _WINDOW_SECONDS:
            self._began, self._before = now, counters
