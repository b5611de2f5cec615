"""Records of rings are yielded once, in order of time, however they arrive."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import agent_memory as made
import pytest
from agent_memory import file_of, make_control, make_data, put_record

from processes import times
from rbtrace_py.agent import ring as ring_module
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.ring import AT_ONCE, Ring
from rbtrace_py.agent.shared import SharedMemory
from rbtrace_py.aggregate.call_interpreter import CallMerge, Placed

SEED = 20_260_103
ENTRY, RETURN, LOST, STACK, PLACE, THREAD, TEXT = 1, 2, 5, 11, 12, 13, 14


class Writer:
    """The target's side: it writes records while the ring is read."""

    def __init__(self) -> None:
        fd = file_of(make_data())
        control = file_of(make_control())
        self._data = mmap.mmap(fd, made.SIZE)
        self._control = mmap.mmap(control, len(make_control()))
        self.view = memoryview(self._data)
        self.memory = SharedMemory(fd, control)
        self._written = [0] * made.STREAMS

    def write(self, stream: int, *record: int) -> None:
        put_record(self.view, stream, self._written[stream], *record)
        self._written[stream] += 1

    def publish(self, stream: int, number: int) -> None:
        at = made.STREAMS_AT + stream * made.STREAM_SIZE
        struct.pack_into("<Q", self.view, at, number)

    def tail(self, stream: int) -> int:
        found: int = struct.unpack_from("<Q", self._control, 64 * (stream + 1))[0]
        return found


class Ordered(Ring):
    """A ring whose records are sorted as they arrive."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__(memory)
        self._merge = CallMerge(memory.record_size)

    def placed(self, most: int = AT_ONCE) -> list[Placed]:
        """Return the records of a step; the last step includes those that waited."""
        step = self.step(most)
        return [] if step is None else self._merge.feed(step)

    def all(self, most: int = AT_ONCE) -> list[list[Placed]]:
        """Return the records of each step until none are left."""
        found = []
        while step := self.step(most):
            found.append(self._merge.feed(step))
        return found


@pytest.fixture
def writer() -> Iterator[Writer]:
    made_ = Writer()
    yield made_
    made_.memory.close()


def test_each_record_once(writer: Writer) -> None:
    ring = Ordered(writer.memory)
    assert ring.placed() == []
    writer.write(0, 10, 1, 0, ENTRY, 0)
    writer.write(0, 12, 1, 0, RETURN, 0)
    assert ring.waiting() == 2
    assert ring.placed() == [(10, 0, (10, 1, 0, 1, 0)), (12, 0, (12, 1, 0, 2, 0))]
    assert (ring.placed(), ring.count, ring.waiting()) == ([], 2, 0)
    assert ring.step() is None
    assert (writer.tail(0), writer.tail(1)) == (2, 0)


def test_streams_in_the_order_of_time(writer: Writer) -> None:
    for time in (10, 13, 16):
        writer.write(0, time, 1, 0, ENTRY, 0)
    for time in (11, 12, 17):
        writer.write(1, time, 2, 0, ENTRY, 0)
    placed = Ordered(writer.memory).placed()
    assert [(time, stream) for time, stream, _ in placed] == [
        (10, 0),
        (11, 1),
        (12, 1),
        (13, 0),
        (16, 0),
        (17, 1),
    ]


def test_records_written_meanwhile_stay_in_order(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stream 0 gets a record after it was read, and stream 1 a later one."""
    writer.write(0, 10, 1, 0, ENTRY, 0)
    looked = []
    published = writer.memory.published

    def look(stream: int) -> int:
        looked.append(stream)
        if looked == [0, 1]:
            writer.write(0, 20, 1, 0, RETURN, 0)
            writer.write(1, 30, 2, 0, ENTRY, 0)
        return published(stream)

    monkeypatch.setattr(writer.memory, "published", look)
    ring = Ordered(writer.memory)
    steps = [[(time, stream) for time, stream, _ in step] for step in ring.all()]
    assert len(steps) == 2
    assert steps[0][0] == (10, 0)
    assert steps[0] + steps[1] == [(10, 0), (20, 0), (30, 1)]


def test_a_stacks_triple_stays_together(writer: Writer) -> None:
    """PLACE and THREAD have an address instead of a time."""
    writer.write(0, 50, 9, 0, ENTRY, 0)
    writer.write(1, 40, 2, 0, STACK, 0)
    writer.write(1, 1 << 47, 77, 0, PLACE, 0)
    writer.write(1, 0, 0, 0, THREAD, 0)
    writer.write(1, 60, 1, 0, ENTRY, 0)
    placed = Ordered(writer.memory).placed()
    kinds = [(time, record[3]) for time, _, record in placed]
    assert kinds == [(40, STACK), (40, PLACE), (40, THREAD), (50, 1), (60, 1)]


def test_texts_stay_behind_their_entry(writer: Writer) -> None:
    """They have bytes instead of a time."""
    writer.write(0, 50, 9, 0, ENTRY, 2)
    writer.write(0, (1 << 64) - 1, 1, 1, TEXT, 14 + 16)
    writer.write(0, 3, 0, 0, TEXT, 1)
    writer.write(1, 60, 1, 0, ENTRY, 0)
    writer.write(0, 70, 9, 0, RETURN, 0)
    placed = Ordered(writer.memory).placed()
    kinds = [(time, record[3]) for time, _, record in placed]
    assert kinds == [(50, ENTRY), (50, TEXT), (50, TEXT), (60, ENTRY), (70, RETURN)]


def test_a_loss_keeps_its_place(writer: Writer) -> None:
    writer.write(0, 10, 1, 0, ENTRY, 0)
    writer.write(0, 15, 123, 1, LOST, 0)
    writer.write(0, 15, 1, 1, ENTRY, 0)
    placed = Ordered(writer.memory).placed()
    assert [record for _, _, record in placed][1] == (15, 123, 1, LOST, 0)


def test_clocks_that_differ_do_not_mix_a_stream(writer: Writer) -> None:
    """Two processors' counters may be some ticks apart."""
    for time in (10, 9, 11):
        writer.write(0, time, time, 0, ENTRY, 0)
    writer.write(1, 10, 1, 0, ENTRY, 0)
    placed = Ordered(writer.memory).placed()
    assert [r[0] for _, stream, r in placed if stream == 0] == [10, 9, 11]


def test_much_comes_in_steps(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "_LEAST", 3)
    for number in range(8):
        writer.write(0, 10 * number, 1, 0, ENTRY, 0)
        writer.write(1, 10 * number + 5, 1, 0, ENTRY, 0)
    steps = Ordered(writer.memory).all(most=6)
    assert max(map(len, steps)) <= 6
    times_ = [time for step in steps for time, _, _ in step]
    assert times_ == list(range(0, 80, 5))


def test_a_stream_that_is_behind(writer: Writer) -> None:
    """Later records of another stream wait for it, however many steps it takes."""
    for number in range(5):
        writer.write(0, 10 * number, 1, 0, ENTRY, 0)
    ring = Ordered(writer.memory)
    assert [time for time, *_ in ring.placed()] == [0, 10, 20, 30, 40]
    for number in range(5, 8):
        writer.write(0, 10 * number, 1, 0, ENTRY, 0)
    writer.write(1, 55, 2, 0, ENTRY, 0)
    writer.write(1, 75, 2, 0, RETURN, 0)
    found = [time for step in ring.all() for time, *_ in step]
    assert found == [50, 55, 60, 70, 75]


def test_a_stack_that_is_cut(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may end after STACK. The next records get its time nevertheless."""
    monkeypatch.setattr(ring_module, "_LEAST", 1)
    writer.write(0, 40, 2, 0, STACK, 0)
    writer.write(0, 1 << 47, 77, 0, PLACE, 0)
    writer.write(0, 0, 0, 0, THREAD, 0)
    writer.write(0, 60, 1, 0, ENTRY, 0)
    writer.write(1, 50, 1, 0, ENTRY, 0)
    found = [placed for step in Ordered(writer.memory).all(most=2) for placed in step]
    kinds = [(time, record[3]) for time, _, record in found]
    assert kinds == [(40, STACK), (40, PLACE), (40, THREAD), (50, 1), (60, 1)]


@pytest.mark.parametrize("number", [made.RECORDS + 1, 1 << 31, (1 << 64) - 1])
def test_more_than_a_ring_holds(number: int, writer: Writer) -> None:
    writer.publish(1, number)
    ring = Ordered(writer.memory)
    assert ring.waiting() <= made.STREAMS * made.RECORDS
    with pytest.raises(BrokenAgent):
        ring.placed()


def test_a_ring_that_goes_back(writer: Writer) -> None:
    ring = Ordered(writer.memory)
    for _ in range(3):
        writer.write(0, 10, 1, 0, ENTRY, 0)
    ring.placed()
    writer.publish(0, 2)
    with pytest.raises(BrokenAgent):
        ring.placed()


@pytest.mark.parametrize(("first", "then"), [(5, 2), (5, 4), (3, 5)])
def test_a_published_count_that_decreases_between_two_reads(
    first: int, then: int, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after 4 records. Each step reads the published count twice."""
    ring = Ordered(writer.memory)
    for _ in range(4):
        writer.write(0, 10, 1, 0, ENTRY, 0)
    ring.placed()
    looks = iter([first, then])
    monkeypatch.setattr(
        writer.memory, "published", lambda stream: 0 if stream else next(looks)
    )
    with pytest.raises(BrokenAgent, match="took back"):
        ring.placed()


def test_rings_full_of_anything(writer: Writer) -> None:
    """Whatever the counts claim, a step ends and takes no more than the rings hold."""
    chance = random.Random(SEED)
    for _ in range(times(10_000)):
        start = made.RINGS_AT
        writer.view[start : made.SIZE] = chance.randbytes(made.SIZE - start)
        ring = Ordered(writer.memory)
        for stream in range(made.STREAMS):
            writer.publish(stream, chance.randrange(made.RECORDS + 1))
        with suppress(BrokenAgent):
            assert sum(map(len, ring.all())) <= made.STREAMS * made.RECORDS
