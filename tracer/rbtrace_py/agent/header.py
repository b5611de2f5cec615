"""The header of the agent's shared memory, which describes its layout.

A header with a region outside the file is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.model.calls import CALL_RECORD_SIZE

HEADER_SIZE = 4096
VERSION = 1
BUCKETS = {2: 4_608, 3: 33_792}
"""Buckets of a histogram, by its digits: HdrHistogram(1 ns, 3600 s, digits)."""
BLOCK_COUNTERS = 64
COUNTER_BITS = 8
LEVELS = 64 // COUNTER_BITS
"""Blocks that count the same buckets, with 8 more bits each."""
METHOD = struct.Struct("<QQII40xQQQQQQ16x")
STREAM = struct.Struct("<QQQQQII16x")
WAITING_AT = 48
"""Offset in a stream: the counter of a duration not yet counted there, u32."""
BLOCK = struct.Struct(f"<{BLOCK_COUNTERS}B")
PLACE = struct.Struct("<IHH")
_MOST_LARGER = 4
"""Factor by which a later agent's records, blocks, and so on may be larger."""

_MAGIC = b"RBTRAGT1"
_FIXED = struct.Struct("<8sIIQIIIIQQQQQQIIQIIQIIQIIQIIQ")


class HookMode(IntEnum):
    """The hook's way to process events."""

    EMPTY = 0
    RING = 1
    TABLE = 2
    SLOW = 3
    SITES = 4


class Flag(IntFlag):
    """Flags with which the hook was armed."""

    METHODS = 1
    C_CALLS = 2
    GC = 4
    RAISE = 8
    OBJECTS = 16
    SITES = 32
    CPU = 64
    WHOLE = 128
    SELECT = 256
    HISTOGRAMS = 512
    TARGETS = 1024
    FINE = 2048


class TicksOf(IntEnum):
    """The clock of the ticks."""

    MONOTONIC = 0
    TSC = 1
    CNTVCT = 2


class Condition(IntFlag):
    """Problems since arming."""

    MISMATCH = 1
    METHODS_FULL = 2
    BLOCKS_FULL = 4
    STREAMS_FULL = 8
    NO_INNER = 16
    SILENT = 32
    OTHER_RACTORS = 64
    LEFT_OUT = 128


@dataclass(frozen=True, slots=True)
class ClockPair:
    """A time in ``ticks`` and in ``ns`` (CLOCK_MONOTONIC in the target's namespace)."""

    ticks: int
    ns: int


@dataclass(frozen=True, slots=True)
class Region:
    """``capacity`` items of ``size`` bytes from ``offset``; all 0 if it is absent."""

    offset: int
    capacity: int
    size: int

    def place(self, index: int) -> int:
        """Return the offset of an item; raises BrokenAgent if it is out of range."""
        if not 0 <= index < self.capacity:
            raise BrokenAgent(f"the agent's memory has no number {index}")
        return self.offset + index * self.size


@dataclass(frozen=True, slots=True)
class Header:
    """The part of the memory that does not change after arming.

    Attributes:
        size: Size of the file in bytes.
        pid: Pid in the process's own namespace.
        mult: Clock scale, measured at arming: ns = ticks * mult >> 32.
        loaded: The clock when the agent was loaded.
        armed: The clock when the hook was armed.
        places: Region with the method and histogram part of each block.
        digits: Significant digits of the histograms; 0: none.
        ring_records: Records per ring, a power of two; 0: no rings.
    """

    size: int
    pid: int
    mode: HookMode
    flags: Flag
    clock: TicksOf
    mult: int
    loaded: ClockPair
    armed: ClockPair
    methods: Region
    places: Region
    digits: int
    blocks: Region
    streams: Region
    rings: Region
    ring_records: int
    threshold_ns: int


def parse_header(data: bytes, size: int) -> Header:
    if len(data) < HEADER_SIZE or data[:8] != _MAGIC:
        raise BrokenAgent("the agent's memory has a wrong magic number")
    (
        _, version, header_size, said, pid, mode, flags, clock, mult,
        ticks0, ns0, ticks1, ns1,
        methods_at, methods, method_size,
        places_at, digits, place_size,
        blocks_at, blocks, block_size,
        streams_at, streams, stream_size,
        rings_at, ring_records, record_size,
        threshold,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    if version != VERSION:
        raise BrokenAgent(f"the agent's memory has a layout of version {version}")
    if header_size < HEADER_SIZE or said != size:
        raise BrokenAgent("the agent's memory has the wrong size")
    if mode > max(HookMode) or clock > max(TicksOf):
        raise BrokenAgent("the agent's memory has an unknown mode or clock")
    if ring_records & (ring_records - 1):
        raise BrokenAgent(f"a ring of the agent has {ring_records} records")
    if rings_at and record_size % 8:
        raise BrokenAgent("the agent's memory has unaligned records")
    if places_at and digits not in BUCKETS:
        raise BrokenAgent(
            "the agent's memory has unknown histograms: the agent in the process is of"
            " another version"
        )

    def region(name: str, offset: int, capacity: int, size_: int, least: int) -> Region:
        return _region(
            name, Region(offset, capacity, size_), least, (header_size, size)
        )

    ring = ring_records * record_size
    return Header(
        size,
        pid,
        HookMode(mode),
        Flag(flags & sum(Flag)),
        TicksOf(clock),
        mult,
        ClockPair(ticks0, ns0),
        ClockPair(ticks1, ns1),
        region("methods", methods_at, methods, method_size, METHOD.size),
        region("places", places_at, blocks, place_size, PLACE.size),
        digits if places_at else 0,
        region("blocks", blocks_at, blocks, block_size, BLOCK.size),
        region("streams", streams_at, streams, stream_size, STREAM.size),
        region("rings", rings_at, streams, ring, ring_records * CALL_RECORD_SIZE),
        ring_records if rings_at else 0,
        threshold,
    )


def _region(name: str, found: Region, least: int, limits: tuple[int, int]) -> Region:
    """Return the region.

    Raises:
        BrokenAgent: It is outside ``limits``, or its items are smaller than ``least``
            bytes or much larger.
    """
    if found.offset == 0:
        return Region(0, 0, 0)
    start, end = limits
    if (
        found.capacity == 0
        or not max(least, 1) <= found.size <= least * _MOST_LARGER
        or found.size % 8
        or found.offset % 8
        or found.offset < start
        or found.offset + found.capacity * found.size > end
    ):
        raise BrokenAgent(f"the agent's memory has no space for its {name}")
    return found
