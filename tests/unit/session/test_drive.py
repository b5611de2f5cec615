"""The driver of all sessions, with a clock that only the session moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rbtrace_py.session import drive as module
from rbtrace_py.session.drive import EARLY_SECONDS, drive
from rbtrace_py.session.limits import REFRESH_SECONDS, Limits


@dataclass
class Counter:
    """A session with one event every ``step`` seconds that ends after ``ends``
    refreshes.

    It returns up to ``early`` seconds before the given time. With ``has_child``, it
    seems to be over until it is refreshed, and ends with the next refresh.
    """

    step: float = 0.01
    ends: int | None = None
    early: float = 0.0
    has_child: bool = False
    now: float = 0.0
    seen: int = 0
    refreshed: list[float] = field(default_factory=list)
    finished: int = 0

    @property
    def is_over(self) -> bool:
        if self.has_child:
            return len(self.refreshed) != 1
        return self.ends is not None and len(self.refreshed) >= self.ends

    def advance(self, until: float, most: int | None) -> None:
        while self.now < until and self.seen != most:
            self.now = min(self.now + self.step, until)
            self.seen += 1
            if self.now >= until - self.early:
                break

    def refresh(self) -> None:
        self.refreshed.append(self.now)

    def finish(self) -> None:
        self.finished += 1

    def time(self) -> float:
        return self.now


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    monkeypatch.setattr(module.time, "monotonic", counter.time)
    return counter


def test_a_duration(counter: Counter) -> None:
    drive(counter, Limits(duration=1))
    assert counter.now == 1
    assert counter.finished == 1
    assert len(counter.refreshed) == pytest.approx(1 / REFRESH_SECONDS, abs=1)


def test_a_count(counter: Counter) -> None:
    drive(counter, Limits(count=42))
    assert counter.seen == 42
    assert counter.finished == 1


def test_the_end_of_all_targets(counter: Counter) -> None:
    counter.ends = 3
    drive(counter, Limits())
    assert counter.finished == 1


def test_an_ended_target_may_have_left_a_child(counter: Counter) -> None:
    """A refresh finds the child."""
    counter.has_child = True
    drive(counter, Limits())
    assert counter.refreshed[0] == 0
    assert counter.seen > 0
    assert counter.finished == 1


def test_a_stop(counter: Counter) -> None:
    drive(counter, Limits(), stop=lambda: counter.now > 2)
    assert 2 < counter.now <= 2 + REFRESH_SECONDS
    assert counter.finished == 1


def test_intervals_and_the_rest_at_the_end(counter: Counter) -> None:
    ended: list[tuple[float, int]] = []
    drive(
        counter,
        Limits(duration=2.5, interval=1),
        on_interval=lambda: ended.append((counter.now, counter.finished)),
    )
    assert ended == [(1, 0), (2, 0), (2.5, 1)]


def test_no_interval_is_reported_without_one(counter: Counter) -> None:
    drive(counter, Limits(duration=1), on_interval=lambda: pytest.fail("an interval"))


def test_ticks(counter: Counter) -> None:
    ticks: list[float] = []
    drive(counter, Limits(duration=1), on_tick=ticks.append)
    assert ticks == counter.refreshed


def test_a_session_that_returns_early_is_refreshed_then(counter: Counter) -> None:
    counter.early = EARLY_SECONDS
    drive(counter, Limits(duration=1))
    assert counter.now == 1
    assert counter.refreshed[0] == pytest.approx(REFRESH_SECONDS - EARLY_SECONDS)
