"""Ongoing times: each part is counted so far, and the whole time once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.aggregate.open_times import OpenTimes, ToldTimes
from rbtrace_py.model.stack_walk import OffCpu, WalkedStack

SLEEPS = OffCpu(False, False, False, 0, None)
KEYS = (b"a", b"b")


def stack(key: bytes, weight: int) -> WalkedStack:
    return WalkedStack(key, 0, 1, 1, 1, 1, None, 0, False, weight, SLEEPS)


def due(times: OpenTimes, over: list[WalkedStack], *still: WalkedStack) -> int:
    return sum(one.weight for one in times.due(over, still))


def test_a_time_that_goes_on() -> None:
    times = OpenTimes()
    assert due(times, [], stack(b"a", 3)) == 3
    assert due(times, [], stack(b"a", 7)) == 4
    assert due(times, [stack(b"a", 9)]) == 2
    assert due(times, []) == 0


def test_a_time_that_ended_between_two_reads() -> None:
    times = OpenTimes()
    assert due(times, [], stack(b"a", 3)) == 3
    assert due(times, []) == 0
    assert due(times, [stack(b"a", 9)]) == 6


def test_one_that_never_ended() -> None:
    """Its process is released. Later times do not belong to it."""
    times = OpenTimes()
    assert due(times, [], stack(b"a", 3)) == 3
    assert due(times, []) == due(times, []) == 0
    assert due(times, [stack(b"a", 9)]) == 9


# Steps of two stacks: the length of each, and whether it ends then.
steps = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 9), st.booleans()))


@given(steps)
def test_all_is_counted_once(taken: list[tuple[bytes, int, bool]]) -> None:
    times, going, all_of_it = OpenTimes(), Counter[bytes](), Counter[bytes]()
    counted: Counter[bytes] = Counter()

    def take(over: list[WalkedStack]) -> None:
        still = [stack(key, weight) for key, weight in going.items() if weight]
        for one in times.due(over, still):
            counted[one.key] += one.weight

    for key, weight, ends in taken:
        going[key] += weight
        all_of_it[key] += weight
        take([stack(key, going.pop(key))] if ends else [])
    assert counted == all_of_it


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_reported_parts_of_a_threads_times_add_up(
    lengths: list[int], looks: list[int]
) -> None:
    """Whenever they are read, the reported parts add up to the whole."""
    told, found = ToldTimes(), 0
    looks = sorted(looks)
    since = 100
    for length in lengths:
        until = since + length
        for now in (one for one in looks if since < one <= until):
            (*parts,) = told.tell([stack(b"a", now - since)._replace(time_ns=now)])
            found += sum(part.weight for part in parts)
        found += told.rest(stack(b"a", length)._replace(time_ns=until))
        since = until
    assert found == sum(lengths)


def test_threads_that_ended_are_forgotten() -> None:
    """The threads of the last two readings are kept: a time may end between the two."""
    told = ToldTimes()
    for number in range(1000):
        told.tell([stack(b"a", 10)._replace(time_ns=30, tid=number)])
    assert len(told) == 2


def test_a_time_that_ended_before_it_is_read() -> None:
    """Its record arrives after the next time of its thread was reported."""
    told = ToldTimes()
    (first,) = told.tell([stack(b"a", 10)._replace(time_ns=30)])
    assert first.weight == 10
    assert told.rest(stack(b"b", 20)._replace(time_ns=20)) == 20


def test_a_time_reported_before_the_next_one() -> None:
    """Two readings arrive at once: the record of the ended time follows both."""
    told = ToldTimes()
    told.tell([stack(b"a", 10)._replace(time_ns=30)])
    (next_,) = told.tell([stack(b"b", 3)._replace(time_ns=45)])
    assert next_.weight == 3
    assert told.rest(stack(b"a", 18)._replace(time_ns=38)) == 8
    assert told.rest(stack(b"b", 7)._replace(time_ns=49)) == 4
