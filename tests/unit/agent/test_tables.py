"""The hook's tables, valid or written by a hostile process."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import agent_memory as made
import pytest
from agent_memory import make_data, memory_of

from processes import times
from rbtrace_py.agent.arming import tick_scale
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import ClockPair, HookMode, SharedMemory
from rbtrace_py.agent.tables import Counted, Tables
from rbtrace_py.model.calls import MethodKind, TickScale

SEED = 20_260_103
HOSTILE = (0, 1, 5, 255, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)


def scale_of(memory: SharedMemory) -> TickScale:
    """Two ticks per nanosecond."""
    return tick_scale(memory.header, ClockPair(41_000, 20_500))


def rows(data: bytearray, is_timed: bool = True) -> list[Counted]:
    with memory_of(data) as memory:
        return Tables(memory, scale_of(memory)).read(is_timed)


def test_rows_are_in_nanoseconds() -> None:
    buckets = {192 + place: place for place in range(1, 64)}
    first, second = rows(make_data(HookMode.TABLE))
    assert first == Counted(1, MethodKind.RUBY, 1, 2, 1, 2, 2, 3, buckets)
    assert second == Counted(2, MethodKind.C, 2, 3, 2, 2, 3, 3)


def test_counts_alone() -> None:
    found = rows(make_data(HookMode.TABLE), is_timed=False)
    assert found == [Counted(1, 1, 1), Counted(2, 2, 2)]


def test_unchanged_rows_are_the_same_objects() -> None:
    data = make_data(HookMode.TABLE)
    # Both calls are in the histogram. The other method's calls are not yet.
    made.put_block(data, 1, (1, 3, 0), [1, 1, *[0] * 62])
    with memory_of(data) as memory:
        tables = Tables(memory, scale_of(memory))
        before, after = tables.read(), tables.read()
    assert before == after
    assert [one is other for one, other in zip(before, after, strict=True)] == [
        True,
        False,
    ]


def test_methods_without_calls_have_no_row() -> None:
    data = make_data(HookMode.TABLE)
    struct.pack_into("<6Q", data, _method(1) + 64, *[0] * 6)
    assert [row.index for row in rows(data)] == [2]


def test_an_unknown_kind_is_skipped() -> None:
    data = make_data(HookMode.TABLE)
    struct.pack_into("<I", data, _method(1) + 16, 6)
    assert [row.index for row in rows(data)] == [2]


def test_numbers_have_bounds() -> None:
    data = make_data(HookMode.TABLE)
    struct.pack_into("<6Q", data, _method(1) + 64, *[(1 << 64) - 1] * 6)
    most = (1 << 63) - 1
    row = rows(data)[0]
    assert (row.entries, row.calls, row.total, row.longest) == (most,) * 4


@pytest.mark.parametrize(
    "place",
    [
        (made.METHODS, 0, 0),
        ((1 << 32) - 1, 0, 0),
        (1, 72, 0),
        (1, 65_535, 0),
        (1, 0, 8),
    ],
)
def test_a_block_of_nothing(place: tuple[int, int, int]) -> None:
    data = make_data(HookMode.TABLE)
    made.put_block(data, 1, place, [0] * 64)
    with pytest.raises(BrokenAgent, match="without a histogram"):
        rows(data)


@pytest.mark.parametrize("digits", [0, 1, 4, 528])
def test_histograms_of_another_agent(digits: int) -> None:
    data = make_data(HookMode.TABLE)
    struct.pack_into("<I", data, 104, digits)
    with pytest.raises(BrokenAgent, match="is of another version"):
        rows(data)


def test_counters_that_go_on() -> None:
    """Each level has 8 bits more; numbers have bounds."""
    data = make_data(HookMode.TABLE)
    struct.pack_into("<I", data, made.COUNTERS_AT + 8, 9)
    for level in range(8):
        made.put_block(data, 1 + level, (1, 3, level), [1, *[0] * 62, 0xFF])
    expected = {192: sum(1 << 8 * level for level in range(8)), 255: (1 << 63) - 1}
    assert rows(data)[0].buckets == expected


def test_a_duration_that_waits() -> None:
    """A stream's last duration is not in a counter yet. It counts for its method."""
    data = make_data(HookMode.TABLE)
    made.put_block(data, 1, (1, 3, 0), [1, *[0] * 63])
    _set_waiting(data, 0, 64 + 5)
    _set_waiting(data, 1, 64 + 5)  # a third of two calls: it came while this is read
    assert [row.buckets for row in rows(data)] == [{192: 1, 197: 1}, {}]


@pytest.mark.parametrize("counter", [1, 63, 2 * 64, (1 << 32) - 1])
def test_one_that_waits_for_no_block(counter: int) -> None:
    data = make_data(HookMode.TABLE)
    made.put_block(data, 1, (1, 3, 0), [1, *[0] * 63])
    _set_waiting(data, 0, counter)
    assert rows(data)[0].buckets == {192: 1}


def test_a_carry_that_never_ends() -> None:
    """A process that is killed while it writes an update leaves it incomplete."""
    data = make_data(HookMode.TABLE)
    struct.pack_into("<Q", data, 288, 7)
    assert rows(data)[0].buckets == {192 + place: place for place in range(1, 64)}


def test_without_histograms() -> None:
    data = make_data(HookMode.TABLE)
    struct.pack_into("<QII", data, 96, 0, 0, 0)
    struct.pack_into("<QII", data, 112, 0, 0, 0)
    struct.pack_into("<I", data, made.COUNTERS_AT + 8, 0)
    assert [row.buckets for row in rows(data)] == [{}, {}]


def test_hostile_tables() -> None:
    """Their contents are refused, or are numbers within bounds."""
    random_ = random.Random(SEED)
    for _ in range(times(20_000)):
        data = make_data(HookMode.TABLE)
        for _ in range(random_.randrange(1, 6)):
            at = random_.randrange(0, made.BLOCKS_AT, 4)
            value = random_.choice(HOSTILE)
            struct.pack_into("<I", data, at, value & 0xFFFFFFFF)
        with suppress(BrokenAgent):
            for row in rows(data):
                _check(row)


def _check(row: Counted) -> None:
    assert MethodKind(row.kind) or row.kind == 0
    assert max(row.entries, row.calls) > 0
    times_ = (row.entries, row.calls, row.total, row.own, row.summed, row.longest)
    assert all(0 <= number < 1 << 63 for number in times_)
    assert all(0 <= bucket < 4_608 for bucket in row.buckets)
    assert all(0 < count < 1 << 63 for count in row.buckets.values())


def _set_waiting(data: bytearray, stream: int, counter: int) -> None:
    at = made.STREAMS_AT + stream * made.STREAM_SIZE + 48
    struct.pack_into("<I", data, at, counter)


def _method(index: int) -> int:
    return made.METHODS_AT + index * made.METHOD_SIZE
