"""Blocks of ``calls --record``: a process, its methods' names, records of its rings.

The file contains the records as the agent's hook published them. Other blocks contain
the data that a reader requires to turn them into calls. docs/formats specifies each
byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.model.calls import CALL_RECORD_SIZE, RingStep, TickScale
from rbtrace_py.model.printable import printable
from rbtrace_py.recording.blocks import (
    BlockType,
    Damaged,
    block,
    pack_columns,
    unpack_columns,
)
from rbtrace_py.recording.metadata import dump_json, load_json

METHOD_COLUMNS = "III"
"""Number of the process, number of the method, number of its stack of one frame."""
MOST_AT_ONCE = 8 << 20
"""Approximate maximum bytes of a step's records, so that they fit into a block."""
MOST_RECORD = 32
"""Maximum bytes of a record."""
_RECORDS = struct.Struct("<IIQ")
_PART = struct.Struct("<II")
_MOST_TIME = 1 << 62
_MOST_EXPRESSIONS = 4096
_DRIFT = 0.01
"""Maximum relative difference of two measurements of a clock's rate."""


@dataclass(frozen=True, slots=True)
class ProcessNews:
    """A PROCESS block.

    Attributes:
        number: Number of the process.
        process: Facts about the process; only in its first block.
        clock: Another reading of its clock: ticks, and ns of CLOCK_MONOTONIC.
        until: Time in ticks after which its records are ignored.
        ended: True if it has no more records.
    """

    number: int
    process: HookedProcess | None = None
    clock: tuple[int, int] | None = None
    until: int | None = None
    ended: bool = False


def encode_process(news: ProcessNews) -> bytes:
    """Return a PROCESS block."""
    document: dict[str, object] = {"number": news.number}
    if (process := news.process) is not None:
        scale = process.scale
        document |= {
            "pid": process.pid,
            "scale": [scale.zero_ticks, scale.zero_ns, scale.ticks, scale.ns],
            "wall_offset": process.wall_offset,
            "expressions": process.expressions,
            "shares_natives": process.shares_natives,
            "record_size": process.record_size,
        }
    if news.clock is not None:
        document["clock"] = news.clock
    if news.until is not None:
        document["until"] = news.until
    if news.ended:
        document["ended"] = True
    return block(BlockType.PROCESS, dump_json(document))


def decode_process(payload: bytes) -> ProcessNews:
    """Decode a PROCESS block; raises Damaged."""
    document = load_json(payload)
    number = _number(document.get("number"))
    process = clock = until = None
    if "pid" in document:
        process = HookedProcess(
            _number(document["pid"]),
            _scale(document.get("scale")),
            _number(document.get("wall_offset"), -_MOST_TIME),
            _expressions(document.get("expressions")),
            shares_natives=document.get("shares_natives") is True,
            record_size=_record_size(document.get("record_size")),
        )
    if "clock" in document:
        ticks, ns = _numbers(document["clock"], 2)
        clock = (ticks, ns)
    if "until" in document:
        until = _number(document["until"])
    return ProcessNews(number, process, clock, until, document.get("ended") is True)


def rescaled(scale: TickScale, clock: tuple[int, int]) -> TickScale:
    """Return a scale measured until ``clock``: a longer interval is more accurate.

    Return the same scale if the rates differ too much.
    """
    ticks, ns = clock[0] - scale.zero_ticks, clock[1] - scale.zero_ns
    if ticks <= 0 or abs(ns / ticks * scale.ticks / scale.ns - 1) > _DRIFT:
        return scale
    return TickScale(scale.zero_ticks, scale.zero_ns, ticks, ns)


def encode_methods(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Return a METHODS block of rows of METHOD_COLUMNS."""
    columns = list(zip(*rows, strict=True))
    return block(BlockType.METHODS, pack_columns(METHOD_COLUMNS, columns))


def decode_methods(payload: bytes) -> Iterator[tuple[int, int, int]]:
    """Return the rows of a METHODS block; raises Damaged."""
    columns, _ = unpack_columns(METHOD_COLUMNS, payload)
    return zip(*columns, strict=True)


def encode_records(number: int, step: RingStep, record_size: int) -> bytes:
    """Return a RECORDS block."""
    pieces = [_RECORDS.pack(number, len(step.parts), step.complete)]
    pieces += [_PART.pack(s, len(data) // record_size) for s, data in step.parts]
    pieces += [data for _, data in step.parts]
    return block(BlockType.RECORDS, b"".join(pieces), compress=False)


def process_of(payload: bytes) -> int:
    """Return the number of the process of a RECORDS block; raises Damaged."""
    if len(payload) < _RECORDS.size:
        raise Damaged("records of no process")
    return cast(int, _RECORDS.unpack_from(payload)[0])


def decode_records(payload: bytes, record_size: int) -> RingStep:
    """Decode a RECORDS block; raises Damaged."""
    _, count, complete = _RECORDS.unpack_from(payload)
    at = _RECORDS.size + count * _PART.size
    if at > len(payload):
        raise Damaged("records of missing streams")
    parts = []
    for stream, records in _PART.iter_unpack(payload[_RECORDS.size : at]):
        end = at + records * record_size
        parts.append((stream, payload[at:end]))
        at = end
    if at != len(payload):
        raise Damaged("records that differ from their description")
    return RingStep(complete, parts)


def _number(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Damaged("a process without a number")
    if not least <= value < 1 << 64:
        raise Damaged("a process with a number out of range")
    return value


def _numbers(value: object, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise Damaged("a process without a clock")
    return [_number(each) for each in value]


def _scale(value: object) -> TickScale:
    scale = TickScale(*_numbers(value, 4))
    if not scale.ticks or not scale.ns:
        raise Damaged("a clock that does not advance")
    return scale


def _record_size(value: object) -> int:
    size = _number(value)
    if not CALL_RECORD_SIZE <= size <= MOST_RECORD:
        raise Damaged("records of an invalid size")
    return size


def _expressions(value: object) -> list[list[str]]:
    selectors = value if isinstance(value, list) else []
    return [
        [printable(text) for text in each if isinstance(text, str)]
        for each in selectors[:_MOST_EXPRESSIONS]
        if isinstance(each, list)
    ]
