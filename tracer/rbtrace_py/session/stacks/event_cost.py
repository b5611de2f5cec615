"""The cost of walking stacks at events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rbtrace_py.model.counters import Counter

MOST_SHARE = 0.05
"""Maximum share of a CPU for walking at events, unless the user accepts more."""
_WINDOW_SECONDS = 1.0


class EventCost:
    """Measures the cost of events for the targets, per second.

    Args:
        entry_ns: Cost of an event before and after the program runs, in ns.
        counters: Returns the walker's current counters.
        clock: Monotonic clock, in seconds.

    Attributes:
        hits: Events of the measured second: the first second with events, or the first
            second that exceeded MOST_SHARE.
        ns: Cost of these events, in ns.
        seconds: Duration of the measured second.
        is_known: True once a second was measured.
        is_too_high: True once a second exceeded MOST_SHARE.
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
        """Share of one CPU; 1.0 is a whole CPU."""
        return self.ns / 1e9 / self.seconds if self.seconds else 0.0

    @property
    def ns_each(self) -> float:
        return self.ns / self.hits if self.hits else 0.0

    def measure(self, is_last: bool = False) -> None:
        """Measure new events. Call this about ten times per second.

        Args:
            is_last: No other call follows.
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
