"""Threads whose calls are in a recording: read from all its blocks beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rbtrace_py.aggregate.blocks import (
    FILE_HEADER_SIZE,
    BlockType,
    Damaged,
    blocks,
    check_file_header,
    unpack_columns,
)
from rbtrace_py.aggregate.calls import CallEventKind, Thread
from rbtrace_py.aggregate.tables import TablesReader
from rbtrace_py.model.stacks import RubyThread

CALL_COLUMNS = "qIIIBHQ"
"""Time since the last one, thread, Ruby stack, method (number of a stack of one frame),
what, depth, and how long it took or how many were lost, plus 1; 0: unknown."""
_NEEDED = (BlockType.STRINGS, BlockType.THREADS)
_FIRST = (CallEventKind.ENTERED, CallEventKind.COLLECTED)
"""What tells first of a stack that something happened in it."""
_MOST_NAMES = 1 << 20


def thread_names(path: Path) -> dict[Thread, str]:
    """Names of all its threads, each as it was last known.

    Of a damaged file as far as it is whole; BadRecording if it is none.
    """
    names: dict[Thread, str] = {}
    for kind, _, tables in _blocks(path):
        for thread in tables.take_threads() if kind == BlockType.THREADS else ():
            key = (thread.pid, thread.tid or 0)
            if thread.tid and (key in names or len(names) < _MOST_NAMES):
                names[key] = thread.name or names.get(key, "")
    return names


def call_stacks(path: Path) -> Iterator[tuple[RubyThread, int]]:
    """Threads, and numbers of Ruby's stacks, with calls; again for each block.

    Damage and errors: as of ``thread_names``.
    """
    for kind, payload, tables in _blocks(path):
        if kind == BlockType.CALLS:
            yield from _stacks(payload, tables)


def _blocks(path: Path) -> Iterator[tuple[int, bytes, TablesReader]]:
    """Each with its section's threads as far as they are known by then."""
    tables = TablesReader()
    with path.open("rb") as file, suppress(Damaged):
        check_file_header(file.read(FILE_HEADER_SIZE), str(path))
        for kind, payload in blocks(file):
            if kind == BlockType.META:
                tables = TablesReader()
            elif kind in _NEEDED:
                tables.add(kind, payload)
            yield kind, payload, tables


def _stacks(payload: bytes, tables: TablesReader) -> Iterator[tuple[RubyThread, int]]:
    try:
        (_, threads, numbers, _, kinds, *_), _ = unpack_columns(CALL_COLUMNS, payload)
        for thread, number, kind in set(zip(threads, numbers, kinds, strict=True)):
            if kind in _FIRST:
                yield tables.thread(thread), number
    except Damaged:
        return
