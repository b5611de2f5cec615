"""When the cost of events is known, and when it is too high."""

from __future__ import annotations

from rbtrace_py.model.counters import Counter
from rbtrace_py.session.stacks.event_cost import EventCost

ENTRY_NS = 1000


class Events:
    """Counters and a clock that a test moves. An event takes 3 µs in its program."""

    def __init__(self) -> None:
        self.now = 100.0
        self.hits = 0
        self.cost = EventCost(ENTRY_NS, self.counters, lambda: self.now)

    def counters(self) -> dict[Counter, int]:
        return {Counter.HITS: self.hits, Counter.SPENT: 3000 * self.hits}

    def come(self, seconds: float, hits: int, is_last: bool = False) -> EventCost:
        self.now += seconds
        self.hits += hits
        self.cost.measure(is_last)
        return self.cost


def test_a_second_tells() -> None:
    events = Events()
    assert not events.come(0.5, 1000).is_known
    cost = events.come(0.5, 1000)
    assert (cost.is_known, cost.is_too_high) == (True, False)
    assert (cost.hits, cost.ns_each, cost.share) == (2000, 4000.0, 0.008)
    later = events.come(1.0, 9000)
    assert later.hits == 2000


def test_a_second_without_events_tells_nothing() -> None:
    events = Events()
    assert not events.come(1.0, 0).is_known
    assert events.come(1.0, 10).hits == 10


def test_the_end_tells() -> None:
    cost = Events().come(0.25, 1000, is_last=True)
    assert (cost.is_known, cost.share) == (True, 0.016)


def test_too_high_a_cost_is_reported_before_the_second_ends() -> None:
    events = Events()
    assert not events.come(0.1, 12_500).is_too_high  # 50 ms
    cost = events.come(0.1, 1)
    assert (cost.is_too_high, cost.hits, round(cost.seconds, 3)) == (True, 12_501, 0.2)


def test_too_much_in_a_later_second() -> None:
    events = Events()
    events.come(1.0, 1000)
    assert not events.come(1.0, 12_500).is_too_high
    cost = events.come(0.5, 12_501)
    assert (cost.is_too_high, cost.hits) == (True, 12_501)


def test_the_cost_is_measured_over_the_elapsed_time() -> None:
    assert not Events().come(2.0, 25_000).is_too_high
    assert Events().come(2.0, 25_001).is_too_high


def test_at_the_end_nothing_is_too_much() -> None:
    assert not Events().come(0.1, 50_000, is_last=True).is_too_high
