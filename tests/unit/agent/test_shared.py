"""The agent's shared memory, valid or written by a hostile process."""

from __future__ import annotations

import fcntl
import os
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import agent_memory as made
import pytest
from agent_memory import file_of, make_control, make_data, memory_of, put_record

from processes import times
from rbtrace_py.agent.arming import tick_scale
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import (
    BUCKETS,
    ClockPair,
    Condition,
    Counters,
    Flag,
    HookMode,
    SharedMemory,
    SharedMethod,
    Stream,
    TicksOf,
)
from rbtrace_py.aggregate.call_interpreter import CallMerge
from rbtrace_py.model.calls import MAX_TICKS, RingStep

HOSTILE = (0, 1, 3, 7, 8, 15, 4095, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)
SEED = 20_260_102


def test_the_header() -> None:
    with memory_of(make_data()) as memory:
        header = memory.header
    assert (header.size, header.pid, header.mode) == (made.SIZE, 7, HookMode.RING)
    assert (header.flags, header.clock) == (Flag.METHODS, TicksOf.TSC)
    assert header.armed == ClockPair(*made.ARMED)
    assert header.ring_records == made.RECORDS


def test_counters_and_streams() -> None:
    data = make_data()
    with memory_of(data) as memory:
        full = Condition.BLOCKS_FULL
        expected = Counters(True, 3, 2, 2, full, 0, *range(11, 20))
        assert memory.counters() == expected
        assert memory.streams() == [
            Stream(0, 0, 0, 9, 0xEC, 0, 70, 1),
            Stream(1, 0, 0, 9, 0xEC, 0, 71, 2),
        ]


def test_methods_and_histograms() -> None:
    with memory_of(make_data(HookMode.TABLE)) as memory:
        assert memory.methods(1, 3)[1] == SharedMethod(
            2, 0xA2, 0xB2, 2, True, 2, 3, 4, 5, 6, 7
        )
        assert list(memory.places(1, 2)) == [(1, 3, 0)]
        assert list(memory.places(2, 2)) == []
        assert memory.counts(1) == tuple(range(64))


def test_records_around_the_end_of_a_ring() -> None:
    data = make_data()
    for number in range(11):
        put_record(data, 1, number, 100 + number, 1, number, 1, 0)
    with memory_of(data) as memory:
        assert (memory.published(0), memory.published(1)) == (0, 11)
        found = memory.records(1, 5, 6)
    placed = list(struct.iter_unpack("<QIHBB", found))
    assert placed == [(100 + n, 1, n, 1, 0) for n in range(5, 11)]


def test_tails_are_written() -> None:
    control = file_of(make_control())
    with SharedMemory(file_of(make_data()), os.dup(control)) as memory:
        memory.set_tail(1, 5)
        assert os.pread(control, 8, 128) == struct.pack("<Q", 5)
        with pytest.raises(BrokenAgent):
            memory.set_tail(2, 5)
    os.close(control)


def test_larger_things_are_stepped_over() -> None:
    data = make_data()
    records, at = 4, made.RINGS_AT
    struct.pack_into("<II", data, 152, records, 24)
    for place in range(records):
        struct.pack_into("<QIHBB", data, at + 24 * place, 50 + place, 1, 0, 1, 0)
    with memory_of(data) as memory:
        placed = CallMerge(memory.record_size).feed(
            RingStep(MAX_TICKS, [(0, memory.records(0, 1, 3))])
        )
    assert [record[0] for _, _, record in placed] == [51, 52, 53]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_stays_open() -> None:
    before = _descriptors()
    memory = memory_of(make_data())
    memory.close()
    memory.close()
    with pytest.raises(BrokenAgent):
        memory_of(b"RBTRAGT1" + bytes(5000))
    with pytest.raises(BrokenAgent):
        memory_of(make_data(), bytes(256))
    assert _descriptors() == before


@pytest.mark.parametrize("seals", [0, 2, 4])
def test_a_file_that_can_be_cut(seals: int) -> None:
    with pytest.raises(BrokenAgent, match="not sealed"):
        SharedMemory(file_of(make_data(), seals), file_of(make_control()))
    with pytest.raises(BrokenAgent, match="not sealed"):
        SharedMemory(file_of(make_data()), file_of(make_control(), seals))


def test_a_file_that_is_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(make_data())
    with pytest.raises(BrokenAgent):
        SharedMemory(os.open(path, os.O_RDONLY), file_of(make_control()))
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(BrokenAgent):
        SharedMemory(file_of(make_data()), read)


def test_memory_of_huge_pages() -> None:
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        os.ftruncate(fd, 2 << 20)
    except OSError:
        pytest.skip("no huge pages here")
    fcntl.fcntl(fd, made.ADD_SEALS, made.SEALS)
    with pytest.raises(BrokenAgent):
        SharedMemory(fd, file_of(make_control()))


@pytest.mark.parametrize("size", [0, 63, 64, 4095, made.SIZE - 1, made.SIZE + 1])
def test_a_file_of_another_size(size: int) -> None:
    with pytest.raises(BrokenAgent):
        memory_of((make_data() + bytes(64))[:size])


@pytest.mark.parametrize(("streams", "size"), [(1, 192), (2, 128), (2, 0)])
def test_a_control_that_is_too_short(streams: int, size: int) -> None:
    with pytest.raises(BrokenAgent):
        memory_of(make_data(), make_control(streams)[:size].ljust(64, b"\0"))


def _use(memory: SharedMemory) -> None:
    """Read everything; each answer is right or refused."""
    for ask in (_use_methods, _use_streams):
        with suppress(BrokenAgent):
            ask(memory)


def _use_methods(memory: SharedMemory) -> None:
    last = memory.counters().methods
    assert last <= memory.header.methods.capacity
    assert len(memory.methods(0, last)) == last
    blocks = memory.counters().blocks
    if memory.header.digits:
        for method, part, level in memory.places(1, blocks):
            assert method < memory.header.methods.capacity
            assert 64 * (part + 1) <= BUCKETS[memory.header.digits]
            assert level < 8
        for block in range(1, blocks):
            assert len(memory.counts(block)) == 64


def _use_streams(memory: SharedMemory) -> None:
    for stream in memory.streams():
        memory.published(stream.index)
        memory.set_tail(stream.index, stream.published)
        count = memory.header.ring_records
        found = memory.records(stream.index, stream.published, count)
        assert len(found) == count * memory.record_size


def _try(data: bytearray) -> None:
    with suppress(BrokenAgent):
        memory = memory_of(data)
        with memory:
            _use(memory)


def _places() -> Iterator[tuple[int, str]]:
    for at in range(0, 296, 4):
        yield at, "<I"
        if at % 8 == 0:
            yield at, "<Q"
    for at in range(made.STREAMS_AT, made.METHODS_AT, 8):
        yield at, "<Q"
    for at in range(made.PLACES_AT, made.BLOCKS_AT, 8):
        yield at, "<I"


def test_every_number_is_a_lie() -> None:
    for mode in (HookMode.RING, HookMode.TABLE):
        for at, kind in _places():
            for value in (*HOSTILE, made.SIZE, made.SIZE - 8, made.SIZE + 8):
                data = make_data(mode)
                struct.pack_into(kind, data, at, value & (1 << 32) - 1)
                if kind == "<Q":
                    struct.pack_into(kind, data, at, value)
                _try(data)


def test_damaged_memory() -> None:
    chance = random.Random(SEED)
    for _ in range(times(20_000)):
        data = make_data(chance.choice(list(HookMode)))
        for _ in range(chance.randint(1, 8)):
            at = chance.choice((264, made.SIZE))
            data[chance.randrange(8, at)] = chance.choice((0, 1, 8, 255))
        _try(data)


@pytest.mark.parametrize(
    "now", [made.LOADED, (0, 0), (1_001, 1 << 62), (1 << 62, 501), (900, 400)]
)
def test_a_clock_that_is_none(now: tuple[int, int]) -> None:
    with memory_of(make_data()) as memory, pytest.raises(BrokenAgent):
        tick_scale(memory.header, ClockPair(*now))


def test_ticks_as_nanoseconds() -> None:
    with memory_of(make_data()) as memory:
        scale = tick_scale(memory.header, ClockPair(2_001_000, 1_000_500))
    assert scale.to_ns(made.ARMED[0]) == made.ARMED[1]
    assert scale.to_ns(made.ARMED[0] + 7) == made.ARMED[1] + 3
    assert scale.duration(11) == 5
    assert scale.duration(-5) == 0
    assert scale.to_ns((1 << 64) - 1) <= (1 << 63) - 1
