"""The shared memory that the agent's hook writes to (docs/agent/memory.md).

The target can change it at any time. Each number is therefore read once and checked
before use. Offsets must be within the file, which the kernel has sealed against
truncation. Times are ticks of the hook's clock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.agent.header import (
    BLOCK,
    BLOCK_COUNTERS,
    BUCKETS,
    HEADER_SIZE,
    LEVELS,
    METHOD,
    PLACE,
    STREAM,
    VERSION,
    WAITING_AT,
    ClockPair,
    Condition,
    Flag,
    Header,
    HookMode,
    Region,
    TicksOf,
    parse_header,
)
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.linux.closing import Closing

__all__ = [
    "BUCKETS",
    "HEADER_SIZE",
    "ClockPair",
    "Condition",
    "Counters",
    "Flag",
    "Header",
    "HookMode",
    "Region",
    "SharedMemory",
    "SharedMethod",
    "Stream",
    "TicksOf",
]

MAX_SIZE = 16 << 30
"""Maximum size of ``data`` in bytes, as in the agent."""

_CONTROL_MAGIC = b"RBTRCTL1"
_LINE = 64
_F_GET_SEALS = 1034
_SHRINK, _GROW = 2, 4
_COUNTERS = struct.Struct("<IIIIIIQQQQQQQQQ")
_COUNTERS_AT = 192
_CARRIES_AT = 288


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that change; the numbers of methods and blocks include number 0.

    Attributes:
        mismatch: The value that contradicts Ruby, for which the hook disarmed itself;
            0: none.
        no_stream: Events dropped for lack of memory for a stream.
        no_method: Calls of methods for which there was no space, counted for number 0.
        too_deep: Calls omitted because they were more than 16,384 levels deep.
        orphans: Returns of calls that began before arming.
        abandoned: Calls that never returned.
        no_block: Durations missing in the histograms.
        no_values: Entries without the requested values.
        in_other_ractors: Omitted events of calls in other Ractors.
        duplicates: Calls reported twice, of which one was omitted.
    """

    is_armed: bool
    methods: int
    blocks: int
    streams: int
    conditions: Condition
    mismatch: int
    no_stream: int
    no_method: int
    too_deep: int
    orphans: int
    abandoned: int
    no_block: int
    no_values: int
    in_other_ractors: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class SharedMethod:
    """A called method. Fields from ``entries`` on are for mode TABLE; times in ticks.

    Attributes:
        owner: VALUE of its class or module.
        id: ID of its original name; 0: none.
        kind: 0 no room, 1 Ruby method, 2 C method, 3 gc, 4 raise, 5 object.
        calls: Calls that returned.
        total: Time inside it, counting recursive calls once.
        self: ``total`` without its callees.
        sum: Sum of the durations of all calls.
        max: Longest call.
    """

    index: int
    owner: int
    id: int
    kind: int
    is_selected: bool
    entries: int
    calls: int
    total: int
    self: int
    sum: int
    max: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of one Ruby stack, of a thread or a fiber.

    Attributes:
        published: Number of complete records since the beginning.
        written: ``published`` plus records that may be withdrawn (mode SLOW).
        dropped: Number of events that did not fit.
        ec: Its current ``rb_execution_context_t``.
        thread: Its ``rb_thread_t``, or 0.
        tid: Kernel thread ID in the target's pid namespace.
        stack: Number of the stack.
    """

    index: int
    published: int
    written: int
    dropped: int
    ec: int
    thread: int
    tid: int
    stack: int


class SharedMemory(Closing):
    """``data`` mapped for reading and ``control`` for writing.

    The object owns both descriptors and closes them. The constructor and all methods
    raise BrokenAgent for files that can be truncated or that violate
    docs/agent/memory.md.
    """

    def __init__(self, data: int, control: int) -> None:
        self._data = self._control = None
        try:
            self._data = _map(data, MAX_SIZE, mmap.PROT_READ)
            writing = mmap.PROT_READ | mmap.PROT_WRITE
            self._control = _map(control, MAX_SIZE, writing)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(data)
            os.close(control)
        try:
            self.header = parse_header(self._data[:HEADER_SIZE], len(self._data))
            self._check_control()
        except BaseException:
            self.close()
            raise
        # Words of 8 bytes, which are loaded and stored atomically.
        self._words = memoryview(self._data)[: len(self._data) & ~7].cast("Q")
        self._tails = memoryview(self._control)[: len(self._control) & ~7].cast("Q")

    def close(self) -> None:
        for view in ("_words", "_tails"):
            if hasattr(self, view):
                getattr(self, view).release()
        for memory in (self._data, self._control):
            if memory is not None:
                memory.close()
        self._data = self._control = None

    def counters(self) -> Counters:
        """Return the current counters."""
        at = _COUNTERS_AT
        found = _COUNTERS.unpack(self._read(at, _COUNTERS.size))
        state, methods, blocks, streams, conditions, mismatch, *rest = found
        header = self.header
        for name, number, most in (
            ("methods", methods, header.methods.capacity),
            ("blocks", blocks, max(header.blocks.capacity, 1)),
            ("streams", streams, header.streams.capacity),
        ):
            if number > most:
                raise BrokenAgent(f"the agent's memory has {number} of {most} {name}")
        known = Condition(conditions & sum(Condition))
        armed = state == 1
        return Counters(armed, methods, blocks, streams, known, mismatch, *rest)

    def methods(self, first: int, last: int) -> list[SharedMethod]:
        """Return the methods from ``first`` to ``last`` (exclusive)."""
        return [self._method(index) for index in range(first, last)]

    def streams(self) -> list[Stream]:
        """Return the current state of all streams used so far."""
        return [self.stream(index) for index in range(self.counters().streams)]

    def published(self, stream: int) -> int:
        """Return the number of complete records of a stream."""
        return self._words[self.header.streams.place(stream) // 8]

    @property
    def record_size(self) -> int:
        """Size of a record in bytes."""
        return self.header.rings.size // self.header.ring_records

    def records(self, stream: int, first: int, count: int) -> bytes:
        """Return records of a stream's ring.

        Args:
            stream: Stream number, from 0.
            first: Number of the first record since the beginning.
            count: Number of records.

        Returns:
            ``count`` records of ``record_size`` bytes.

        Raises:
            BrokenAgent: ``count`` exceeds the ring's size.
        """
        if not 0 <= count <= self.header.ring_records:
            raise BrokenAgent(f"a ring of the agent does not hold {count} records")
        start = self.header.rings.place(stream)
        size = self.record_size
        at = first & (self.header.ring_records - 1)
        before = min(count, self.header.ring_records - at)
        data = self._read(start + at * size, before * size)
        if before == count:
            return data
        return data + self._read(start, (count - before) * size)

    def set_tail(self, stream: int, tail: int) -> None:
        """Allow the agent to overwrite the records before number ``tail``."""
        self.header.streams.place(stream)
        self._tails[_LINE // 8 * (stream + 1)] = tail

    def places(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield the place of each block from ``first`` to ``last`` (exclusive).

        Yields:
            The method's number, the part, and the level. The part is a position in the
            method's histogram: the first counter is bucket ``part`` · 64. The level is
            the position of the counters' 8 bits, from the lowest.
        """
        if first >= last:
            return
        region = self.header.places
        start, end = region.place(first), region.place(last - 1) + region.size
        parts = BUCKETS[self.header.digits] // BLOCK_COUNTERS
        padded = struct.Struct(f"{PLACE.format}{region.size - PLACE.size}x")
        for place in padded.iter_unpack(self._read(start, end - start)):
            method, part, level = place
            most = self.header.methods.capacity
            if method >= most or part >= parts or level >= LEVELS:
                raise BrokenAgent("the agent's memory has a block without a histogram")
            yield method, part, level

    def counts(self, block: int) -> tuple[int, ...]:
        """Return the 64 counters of a block."""
        found = self._read(self.header.blocks.place(block), BLOCK.size)
        return BLOCK.unpack(found)

    def waiting(self) -> Iterator[tuple[int, int]]:
        """Yield the method and bucket of each stream's last, uncounted duration."""
        counters = self.counters()
        for stream in range(counters.streams):
            at = self.header.streams.place(stream) + WAITING_AT
            counter = int.from_bytes(self._read(at, 4), "little")
            block, place = divmod(counter, BLOCK_COUNTERS)
            if 0 < block < counters.blocks:
                for method, part, _ in self.places(block, block + 1):
                    yield method, part * BLOCK_COUNTERS + place

    def carries(self) -> int:
        """Return a number that changes, and is odd while a counter is being carried."""
        return self._words[_CARRIES_AT // 8]

    def _method(self, index: int) -> SharedMethod:
        at = self.header.methods.place(index)
        owner, id_, kind, selected, *times = METHOD.unpack(self._read(at, METHOD.size))
        return SharedMethod(index, owner, id_, kind, selected == 1, *times)

    def stream(self, index: int) -> Stream:
        """Return the current state of a stream."""
        at = self.header.streams.place(index)
        return Stream(index, *STREAM.unpack(self._read(at, STREAM.size)))

    def _read(self, at: int, size: int) -> bytes:
        """Return a copy, which does not change while it is checked."""
        assert self._data is not None, "it was closed"
        data: bytes = self._data[at : at + size]
        if len(data) != size:
            raise BrokenAgent(f"the agent's memory ends before {at + size}")
        return data

    def _check_control(self) -> None:
        assert self._control is not None
        magic, version, tails = struct.unpack("<8sII", self._control[:16])
        streams = self.header.streams.capacity
        if magic != _CONTROL_MAGIC or version != VERSION or tails < streams:
            raise BrokenAgent("the agent's second file is not its control")
        if len(self._control) < _LINE * (streams + 1):
            raise BrokenAgent("the agent's control is too short for its streams")


def _map(fd: int, most: int, access: int) -> mmap.mmap:
    """Map a memory file after checking that its seals prevent truncation (SIGBUS)."""
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
        if seals & (_SHRINK | _GROW) != _SHRINK | _GROW:
            raise BrokenAgent("the agent's memory is not sealed")
        # An access to a missing huge page would fail.
        if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
            raise BrokenAgent("the agent's memory has pages of another size")
        size = os.fstat(fd).st_size
        if not _LINE <= size <= most:
            raise BrokenAgent(f"the agent's memory has {size} bytes")
        return mmap.mmap(fd, size, mmap.MAP_SHARED, access)
    except OSError as error:
        raise BrokenAgent(
            f"the agent's memory cannot be mapped: {error.strerror}"
        ) from error
