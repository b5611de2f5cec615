"""Sessions that pass events to a sink: the limits, and the events before the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import pytest

from rbtrace_py.session.event_session import BATCH, EventSession, event_turns
from rbtrace_py.session.limits import Limits


class Bursts(EventSession[int]):
    """A session of numbers. It reads them in bursts, and is over once all are read.

    The last ``late`` numbers arrive while it finishes.
    """

    def __init__(self, numbers: int, burst: int, late: int = 0) -> None:
        self._ready = deque(range(numbers))
        self._late = range(numbers, numbers + late)
        self._burst = burst
        self.taken: list[int] = []
        self.sink = self.take

    def take(self, number: int) -> int:
        self.taken.append(number)
        return 1

    @property
    def is_over(self) -> bool:
        return not self._ready

    def events(self, seconds: float) -> Iterator[int]:
        for _ in range(min(self._burst, len(self._ready))):
            yield self._ready.popleft()

    def drain(self) -> Iterator[int]:
        while self._ready:
            yield self._ready.popleft()

    def refresh(self) -> None:
        """No process joins."""

    def finish(self) -> None:
        self._ready.extend(self._late)
        self._late = range(0)

    def result_counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("burst", [1, BATCH, 2 * BATCH + 1])
def test_each_event_is_taken_once(burst: int) -> None:
    session = Bursts(3 * BATCH, burst, late=BATCH + 1)
    assert list(event_turns(session, Limits()))[-1] is False
    assert session.taken == list(range(4 * BATCH + 1))
    assert session.seen == len(session.taken)


def test_a_step_takes_one_batch_at_most() -> None:
    """In between, the driver and its caller check whether to stop."""
    session = Bursts(3 * BATCH, 3 * BATCH)
    turns = event_turns(session, Limits())
    counts = [len(session.taken) for _ in islice(turns, 3)]
    assert counts == [BATCH, 2 * BATCH, 3 * BATCH]


def test_a_stop_takes_what_came_before() -> None:
    session = Bursts(3 * BATCH, 2 * BATCH, late=1)
    stops = iter([False])
    turns = list(event_turns(session, Limits(), lambda: next(stops, True)))
    assert turns[:3] == [True, True, False]
    assert session.taken == list(range(3 * BATCH + 1))


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH + 1, 3 * BATCH + 1])
def test_a_count_is_exact(count: int) -> None:
    """The last case has its last event only when the session has finished."""
    session = Bursts(3 * BATCH, 2 * BATCH, late=5)
    list(event_turns(session, Limits(count=count)))
    assert session.taken == list(range(count))
    assert session.seen == count


def test_an_event_may_count_as_several_or_none() -> None:
    session = Bursts(10, 10)
    session.sink = lambda number: number % 3
    list(event_turns(session, Limits(count=2)))
    assert session.seen == 2
    assert list(session.events(0)) == [3, 4, 5, 6, 7, 8, 9]
