"""Run time of threads, divided among their ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rbtrace_py.aggregate.run_times import RanNs, RunTimes, ThreadId

ONE, TWO = (10, 10), (10, 11)
PERIOD = 10


def weighed(
    times: RunTimes[str],
    ticks: Mapping[ThreadId, Sequence[str]],
    ran: Mapping[ThreadId, int],
) -> dict[str, int]:
    """Weigh a batch; each tick has a nominal weight of PERIOD."""
    batch = {thread: [(tick, PERIOD) for tick in its] for thread, its in ticks.items()}
    return dict(times.weigh(batch, ran.get))


def test_ticks_share_what_their_thread_ran() -> None:
    times = RunTimes[str]()
    times.begin(ONE, 1000)
    found = weighed(times, {ONE: "abc", TWO: "d"}, {ONE: 1100, TWO: 7})
    assert found == {"a": 33, "b": 33, "c": 34, "d": 7}


def test_a_batch_without_ticks_counts_with_the_next_one() -> None:
    times = RunTimes[str]()
    assert weighed(times, {ONE: "a"}, {ONE: 10}) == {"a": 10}
    assert weighed(times, {}, {ONE: 15}) == {}
    assert weighed(times, {ONE: "bc"}, {ONE: 30}) == {"b": 10, "c": 10}


def test_nominal_weights_are_kept_in_ratio() -> None:
    """A row of the kernel's counts stands for several ticks."""
    times = RunTimes[str]()
    rows = [("a", 3 * PERIOD), ("b", PERIOD)]
    assert dict(times.weigh({ONE: rows}, lambda thread: 100)) == {"a": 75, "b": 25}


def test_the_rest_goes_to_the_last_tick() -> None:
    times = RunTimes[str]()
    weighed(times, {ONE: "ab", TWO: "c"}, {ONE: 20, TWO: 10})
    ran: RanNs = {ONE: 27, TWO: 10}.get
    assert list(times.rest(ran, is_over=False)) == []
    assert list(times.rest(ran, is_over=True)) == [("b", 7)]
    assert list(times.rest(ran, is_over=True)) == []


def test_a_thread_that_has_ended() -> None:
    """Its last ticks have their nominal weight, as nothing tells how long it ran."""
    times = RunTimes[str]()
    assert weighed(times, {ONE: "a"}, {ONE: 25}) == {"a": 25}
    assert list(times.rest({ONE: 28}.get, is_over=False)) == []
    assert weighed(times, {ONE: "bc"}, {}) == {"b": 11, "c": 12}
    assert list(times.rest({}.get, is_over=False)) == []
    assert times.last_ticks == []


def test_the_rest_of_a_thread_that_has_ended() -> None:
    times = RunTimes[str]()
    weighed(times, {ONE: "a"}, {ONE: 25})
    assert list(times.rest({ONE: 28}.get, is_over=False)) == []
    assert list(times.rest({}.get, is_over=False)) == [("a", 3)]
    assert list(times.rest({}.get, is_over=True)) == []


def test_threads_that_ran_and_never_had_a_tick() -> None:
    times = RunTimes[str]()
    times.begin(TWO, 40)
    weighed(times, {ONE: "a"}, {ONE: 5})
    ran: RanNs = {ONE: 9, TWO: 45, (10, 12): 3, (10, 13): 0}.get
    threads = [ONE, TWO, (10, 12), (10, 13), (10, 14)]
    assert list(times.not_sampled(threads, ran)) == [(TWO, 5), ((10, 12), 3)]


def test_a_thread_that_was_missed_for_a_while_is_not_new() -> None:
    """It ran for longer than the sampling has lasted."""
    times = RunTimes[str](clock=iter((0, 1000)).__next__)
    assert weighed(times, {ONE: "ab"}, {ONE: 5000}) == {"a": 10, "b": 10}


def test_threads_that_never_ticked_are_dropped_when_they_end() -> None:
    times = RunTimes[str]()
    times.begin(ONE, 50)
    assert list(times.rest({}.get, is_over=False)) == []
    assert weighed(times, {ONE: "a"}, {ONE: 7}) == {"a": 7}


def test_time_without_a_tick_is_given_once() -> None:
    times = RunTimes[str]()
    ran: RanNs = {ONE: 3}.get
    assert list(times.not_sampled([ONE], ran)) == [(ONE, 3)]
    assert list(times.not_sampled([ONE], ran)) == []
