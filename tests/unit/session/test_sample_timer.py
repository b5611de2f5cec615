"""The sampler's timing, with a clock that only sleeping and work move."""

from __future__ import annotations

from itertools import pairwise

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.session.stacks.sampling_passes import SampleTimer

SECOND = 1_000_000_000
MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += round(seconds * 1e9)


def rounds(rate: float, work: int, until: int) -> tuple[list[int], Statistics]:
    """Return when each pass began, if each takes ``work`` ns."""
    clock, statistics = Clock(), Statistics()
    beat = SampleTimer(rate, statistics, clock, clock.sleep)
    begun = []
    while beat.wait(until):
        begun.append(clock.now)
        clock.now += work
    return begun, statistics


def test_one_round_in_each_period() -> None:
    begun, statistics = rounds(100, 0, SECOND)
    periods = [moment // (10 * MS) for moment in begun]
    assert sorted(set(periods)) == periods
    assert set(range(100)) - set(periods) <= {99}
    assert statistics.rounds == len(begun)
    assert statistics.late == 0


def test_rounds_are_at_no_fixed_place_of_their_period() -> None:
    begun, _ = rounds(100, 0, 10 * SECOND)
    places = [moment % (10 * MS) for moment in begun]
    for tenth in range(10):
        share = sum(place // MS == tenth for place in places) / len(places)
        assert 0.05 < share < 0.15


def test_work_that_ends_in_the_next_period_skips_no_pass() -> None:
    begun, statistics = rounds(100, 4 * MS, SECOND)
    assert len(begun) >= 97
    assert statistics.late < 20


def test_late_passes_are_counted_and_not_made_up_for() -> None:
    begun, statistics = rounds(1000, 5 * MS, SECOND)
    assert 190 < len(begun) <= 201
    assert statistics.rounds == len(begun)
    assert 700 < statistics.late <= 1000
    assert all(b - a >= 5 * MS for a, b in pairwise(begun))


def test_a_pass_that_is_due_later_does_not_begin() -> None:
    clock, statistics = Clock(), Statistics()
    beat = SampleTimer(1, statistics, clock, clock.sleep)
    assert not beat.wait(0)
    assert statistics.rounds == 0


def test_a_pass_that_is_delayed_beyond_the_end_still_begins() -> None:
    """Without it, the time since the previous pass would have no sample."""
    clock, statistics = Clock(), Statistics()
    timer = SampleTimer(100, statistics, clock, lambda _: clock.sleep(0.08))
    assert [timer.wait(50 * MS), timer.wait(50 * MS)] == [True, False]
    assert timer.began == 80 * MS


def test_a_pass_is_not_lost_if_a_wait_ended_before_it() -> None:
    clock, statistics = Clock(), Statistics()
    beat = SampleTimer(1, statistics, clock, clock.sleep)
    while not beat.wait(clock.now + MS):
        assert clock.now <= SECOND
    assert statistics.rounds == 1


def test_passes_that_were_due_at_the_end_are_late() -> None:
    clock, statistics = Clock(), Statistics()
    timer = SampleTimer(100, statistics, clock, clock.sleep)
    assert timer.wait(SECOND)
    clock.now = SECOND
    timer.end()
    assert (statistics.rounds, statistics.late) == (1, 99)
    timer.end()
    assert statistics.late == 99
