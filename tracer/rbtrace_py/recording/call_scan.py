"""Scan of a recording of calls for its processes, methods, and threads.

A name may follow the records that use it, so a first pass reads all blocks for names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.calls import (
    KIND_AT,
    UNKNOWN_METHOD,
    CalledMethod,
    CallKind,
    MethodKind,
)
from rbtrace_py.model.stacks import FrameKind, RubyThread
from rbtrace_py.recording.blocks import (
    FILE_HEADER_SIZE,
    BlockType,
    Damaged,
    blocks,
    check_file_header,
)
from rbtrace_py.recording.call_blocks import (
    ProcessNews,
    decode_methods,
    decode_process,
    decode_records,
    process_of,
    rescaled,
)
from rbtrace_py.recording.lookup_tables import TablesReader

_TABLES = (BlockType.STRINGS, BlockType.FRAMES, BlockType.STACKS, BlockType.THREADS)
_MOST_NAMES = 1 << 20
_METHOD_KINDS = {FrameKind.C: MethodKind.C, FrameKind.GC: MethodKind.GC}
_HAPPENED = re.compile(
    b"[%c%c%c]" % (CallKind.ENTRY, CallKind.C_ENTRY, CallKind.GC_END)
)
"""Kinds of records that can be the first event of a stack."""


@dataclass(eq=False)
class ScannedProcess:
    """A process whose records are in a recording.

    Attributes:
        process: Facts about the process.
        methods: Methods by number.
        until: As in ``ProcessNews``.
    """

    process: HookedProcess
    methods: dict[int, CalledMethod] = field(default_factory=dict)
    until: int | None = None

    def method(self, number: int) -> CalledMethod:
        """Return the method of a number in a record."""
        return self.methods.get(number, UNKNOWN_METHOD)


@dataclass(eq=False)
class CallsScan:
    """Result of the scan of a recording.

    Attributes:
        is_complete: True if the recording was closed and is undamaged.
        end: File offset of the end of the last complete block. The file may still
            grow.
        names: Last known name of each thread.
        processes: Processes by their number in the file.
    """

    is_complete: bool = False
    end: int = 0
    names: dict[Thread, str] = field(default_factory=dict)
    processes: dict[int, ScannedProcess] = field(default_factory=dict)

    def process(self, number: int) -> ScannedProcess:
        """Return the process of a block; raises Damaged."""
        try:
            return self.processes[number]
        except KeyError:
            raise Damaged("an unknown process") from None


def check_version(path: Path, name: str) -> None:
    """Raise BadRecording, with the file's ``name``, if rbtrace-py 0.2 made it."""
    with suppress(Damaged):
        for kind, *_ in section_blocks(path):
            if kind == BlockType.CALLS:
                raise BadRecording(
                    f"{name} was made by rbtrace-py 0.2",
                    "Read it with rbtrace-py 0.2, or record the calls again",
                )
            if kind == BlockType.PROCESS:
                return


def scan(path: Path) -> CallsScan:
    """Scan a file, up to any damage.

    Raises:
        BadRecording: The file is not a recording.
        OSError: The file cannot be read.
    """
    found = CallsScan()
    left = _MOST_NAMES
    with suppress(Damaged):
        for kind, payload, tables, end in section_blocks(path):
            found.end = end
            if kind == BlockType.THREADS:
                _add_names(found.names, tables.take_threads())
            elif kind == BlockType.PROCESS:
                _add_process(found, decode_process(payload))
            elif kind == BlockType.METHODS:
                for number, method, stack in decode_methods(payload):
                    left -= 1
                    if number in found.processes and left > 0:
                        methods = found.processes[number].methods
                        methods[method] = method_of(tables, stack)
            found.is_complete = kind == BlockType.END
        return found
    # The second pass must report the damage, so it must not stop before it.
    found.is_complete, found.end = False, 0
    return found


def call_stacks(path: Path, found: CallsScan) -> Iterator[tuple[RubyThread, int]]:
    """Yield thread and number of each Ruby stack with calls; may repeat them.

    Damage and errors are handled as in ``scan``.
    """
    streams: dict[tuple[int, int], _Stream] = defaultdict(_Stream)
    with suppress(Damaged):
        for kind, payload, _, end in section_blocks(path):
            if end > found.end:
                return
            if kind == BlockType.RECORDS:
                number = process_of(payload)
                process = found.process(number).process
                size = process.record_size
                for stream, data in decode_records(payload, size).parts:
                    state = streams[number, stream]
                    for tid, stack in state.stacks(data, size):
                        yield RubyThread(process.pid, tid, 0, ""), stack


def method_of(tables: TablesReader, stack: int) -> CalledMethod:
    """Return the method that a stack of one frame represents; raises Damaged."""
    frames = tables.stack(stack).frames
    if len(frames) != 1:
        raise Damaged("a call of an unknown method")
    (frame,) = frames
    kind = _METHOD_KINDS.get(frame.kind, MethodKind.RUBY)
    return CalledMethod(kind, None, False, frame.name, frame.path or None, frame.line)


def section_blocks(path: Path) -> Iterator[tuple[int, bytes, TablesReader, int]]:
    """Yield each block's type, payload, section's tables so far, and end offset.

    Raises:
        Damaged: The file is damaged, or cut off, after the last block.
        BadRecording: The file is not a recording.
        OSError: The file cannot be read.
    """
    tables = TablesReader()
    with path.open("rb") as file:
        check_file_header(file.read(FILE_HEADER_SIZE), str(path))
        for kind, payload in blocks(file):
            if kind == BlockType.META:
                tables = TablesReader()
            elif kind in _TABLES:
                tables.add(kind, payload)
            yield kind, payload, tables, file.tell()


def _add_names(names: dict[Thread, str], threads: list[RubyThread]) -> None:
    for thread in threads:
        key = (thread.pid, thread.tid or 0)
        if thread.tid and (key in names or len(names) < _MOST_NAMES):
            names[key] = thread.name or names.get(key, "")


def _add_process(found: CallsScan, news: ProcessNews) -> None:
    if news.process is not None and len(found.processes) < _MOST_NAMES:
        found.processes[news.number] = ScannedProcess(news.process)
    known = found.process(news.number)
    if news.clock is not None:
        scale = rescaled(known.process.scale, news.clock)
        known.process = replace(known.process, scale=scale)
    if news.until is not None:
        known.until = news.until


class _Stream:
    """The current stack of a stream."""

    def __init__(self) -> None:
        self._stack = self._tid = 0

    def stacks(self, data: bytes, size: int) -> Iterator[tuple[int | None, int]]:
        """Yield kernel thread and number of each stack with events."""
        kinds = data[KIND_AT::size]
        begun = (m.start() for m in re.finditer(bytes([CallKind.STACK]), kinds))
        for at, end in pairwise([0, *begun, len(kinds)]):
            if kinds[at : at + 1] == bytes([CallKind.STACK]):
                self._stack = _method(data, at * size)
            place = kinds.find(CallKind.PLACE, at, min(at + 2, end))
            if place >= 0:
                self._tid = _method(data, place * size)
            if _HAPPENED.search(kinds, at, end):
                yield self._tid or None, self._stack


def _method(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 8 : at + 12], "little")
