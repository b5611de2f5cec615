"""Hand-made copies of the agent's two files, as in docs/agent/memory.md."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence

from rbtrace_py.agent.shared import HEADER_SIZE, HookMode, SharedMemory

ADD_SEALS = 1033
SEALS = 2 | 4  # shrink, grow
METHODS, BLOCKS, STREAMS, RECORDS = 16, 16, 2, 8
METHOD_SIZE, BLOCK_SIZE, STREAM_SIZE, RECORD_SIZE = 128, 64, 64, 16
PLACE_SIZE = 8
STREAMS_AT = HEADER_SIZE
METHODS_AT = STREAMS_AT + STREAMS * STREAM_SIZE
PLACES_AT = METHODS_AT + METHODS * METHOD_SIZE
BLOCKS_AT = PLACES_AT + BLOCKS * PLACE_SIZE
RINGS_AT = BLOCKS_AT + BLOCKS * BLOCK_SIZE
SIZE = RINGS_AT + STREAMS * RECORDS * RECORD_SIZE
COUNTERS_AT = 192
LOADED = (1_000, 500)
ARMED = (21_000, 10_500)
"""Ticks and ns: two ticks per nanosecond."""


def make_data(mode: HookMode = HookMode.RING) -> bytearray:
    """Return armed data with two methods, a block, and two streams. A ring holds 8
    records."""
    data = bytearray(SIZE)
    struct.pack_into("<8sIIQIIII", data, 0, b"RBTRAGT1", 1, 4096, SIZE, 7, mode, 1, 1)
    struct.pack_into("<QQQQQ", data, 40, 1 << 31, *LOADED, *ARMED)
    struct.pack_into("<QII", data, 80, METHODS_AT, METHODS, METHOD_SIZE)
    struct.pack_into("<QII", data, 96, PLACES_AT, 2, PLACE_SIZE)
    struct.pack_into("<QII", data, 112, BLOCKS_AT, BLOCKS, BLOCK_SIZE)
    struct.pack_into("<QII", data, 128, STREAMS_AT, STREAMS, STREAM_SIZE)
    struct.pack_into("<QII", data, 144, RINGS_AT, RECORDS, RECORD_SIZE)
    counters = (1, 3, 2, 2, 4, 0, 11, 12, 13, 14, 15, 16, 17, 18, 19)
    struct.pack_into("<6I9Q", data, COUNTERS_AT, *counters)
    for number in (1, 2):
        at = METHODS_AT + number * METHOD_SIZE
        struct.pack_into("<QQII", data, at, 0xA0 + number, 0xB0 + number, number, 1)
        struct.pack_into("<6Q", data, at + 64, *range(number, number + 6))
    put_block(data, 1, (1, 3, 0), range(64))
    for stream in range(STREAMS):
        at = STREAMS_AT + stream * STREAM_SIZE
        struct.pack_into("<5Q2I", data, at, 0, 0, 9, 0xEC, 0, 70 + stream, 1 + stream)
    return data


def put_block(
    data: bytearray,
    number: int,
    place: tuple[int, int, int],
    counts: Sequence[int],
) -> None:
    """Write a block of a method's histogram, of this part and level."""
    struct.pack_into("<IHH", data, PLACES_AT + number * PLACE_SIZE, *place)
    struct.pack_into("<64B", data, BLOCKS_AT + number * BLOCK_SIZE, *counts)


def put_record(
    data: bytearray | memoryview, stream: int, number: int, *record: int
) -> None:
    """Write record ``number`` of a stream and publish it."""
    ring = RINGS_AT + stream * RECORDS * RECORD_SIZE
    struct.pack_into("<QIHBB", data, ring + number % RECORDS * RECORD_SIZE, *record)
    struct.pack_into("<Q", data, STREAMS_AT + stream * STREAM_SIZE, number + 1)


def make_control(streams: int = STREAMS) -> bytearray:
    control = bytearray(64 * (streams + 1))
    struct.pack_into("<8sII", control, 0, b"RBTRCTL1", 1, streams)
    return control


def file_of(data: bytes | bytearray, seals: int = SEALS) -> int:
    """Return a memfd with these contents."""
    fd = os.memfd_create("agent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


def memory_of(
    data: bytes | bytearray, control: bytes | bytearray | None = None
) -> SharedMemory:
    return SharedMemory(file_of(data), file_of(control or make_control()))
