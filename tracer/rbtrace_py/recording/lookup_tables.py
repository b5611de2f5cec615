"""Tables of a recording, by number: strings, frames, stacks, threads.

Each table has a writer and a reader. Tables are incremental: a block contains the new
entries since the last block, with consecutive numbers. A section (a META block) begins
with empty tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate, pairwise
from typing import TypeVar

from rbtrace_py.aggregate.stacktree import MAX_NODES, StackTree
from rbtrace_py.model.printable import printable
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread, Stack
from rbtrace_py.recording.blocks import (
    BlockType,
    Damaged,
    block,
    pack_columns,
    unpack_columns,
)

MAX_DEPTH = 1 << 14
"""Maximum frames of a stack; deeper stacks lose their outermost frames."""

MAX_TEXT = 1 << 26
"""Maximum bytes of all strings of a section."""

_MAX_ENTRIES = 1 << 21
_CHUNK = 1 << 18
_MAX_STRING = 1 << 16
_STACKS_KEPT = 1 << 21

_Row = TypeVar("_Row")

FRAME_COLUMNS = "BIIII"
STACK_COLUMNS = "II"
THREAD_COLUMNS = "IIQIIB"


class TablesWriter:
    """Numbers the stacks and threads of samples, and keeps unwritten entries."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._tree = StackTree(max_nodes)
        self._strings: dict[str, int] = {}
        self._new_strings: list[bytes] = []
        self._text = 0
        self._new_threads: list[RubyThread] = []
        self._threads: dict[RubyThread, int] = {}
        self._thread_values: dict[tuple[object, ...], int] = {}
        self._frames_done = 0
        self._nodes_done = 0

    def stack(self, stack: Stack) -> int | None:
        """Return the number of a stack; None if it requires a new section."""
        if self._text > MAX_TEXT // 2:
            return None
        return self._tree.node(stack.frames[-MAX_DEPTH:])

    def thread(self, thread: RubyThread) -> int:
        """Return the number of a thread."""
        number = self._threads.get(thread)
        if number is None:
            key = (*_thread_row(thread), thread.name)
            number = self._thread_values.get(key)
            if number is None:
                number = self._thread_values[key] = len(self._thread_values)
                self._new_threads.append(thread)
            if len(self._threads) > _CHUNK:
                self._threads.clear()
            self._threads[thread] = number
        return number

    @property
    def is_full(self) -> bool:
        return len(self._thread_values) >= _CHUNK

    def blocks(self) -> list[bytes]:
        """Return blocks of the new entries since the last call, in a readable order."""
        frames = self._frame_blocks()
        threads = self._thread_blocks()
        return [*self._string_blocks(), *frames, *self._stack_blocks(), *threads]

    def _string(self, text: str) -> int:
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self._strings)
            data = text.encode("utf-8", "backslashreplace")[:_MAX_STRING]
            self._new_strings.append(data)
            self._text += len(data)
        return number

    def _string_blocks(self) -> list[bytes]:
        new, self._new_strings = self._new_strings, []
        # A string has at most 64 KiB, so 128 strings fit into a block.
        return [
            block(
                BlockType.STRINGS,
                pack_columns("I", [map(len, part)]) + b"".join(part),
            )
            for part in _parts(new, 128)
        ]

    def _frame_blocks(self) -> list[bytes]:
        new = self._tree.frames[self._frames_done :]
        self._frames_done += len(new)
        rows = [
            (
                frame.kind,
                self._string(frame.name),
                self._string(frame.label),
                self._string(frame.path),
                0 if frame.line is None else frame.line + 1,
            )
            for frame in new
        ]
        return _table(BlockType.FRAMES, FRAME_COLUMNS, rows)

    def _stack_blocks(self) -> list[bytes]:
        done, self._nodes_done = self._nodes_done, len(self._tree)
        rows = [
            (number - parent, leaf)
            for number, parent, leaf in zip(
                range(done + 1, len(self._tree) + 1),
                self._tree.parents[done:],
                self._tree.leaves[done:],
                strict=True,
            )
        ]
        return _table(BlockType.STACKS, STACK_COLUMNS, rows)

    def _thread_blocks(self) -> list[bytes]:
        new, self._new_threads = self._new_threads, []
        rows = []
        for thread in new:
            pid, tid, address, ractor, is_main = _thread_row(thread)
            rows.append((pid, tid, address, self._string(thread.name), ractor, is_main))
        return _table(BlockType.THREADS, THREAD_COLUMNS, rows)


def _thread_row(thread: RubyThread) -> tuple[int, int, int, int, int]:
    tid = 0 if thread.tid is None else thread.tid
    return (thread.pid, tid, thread.address, thread.ractor, int(thread.is_main))


def _table(
    kind: BlockType, typecodes: str, rows: Sequence[tuple[int, ...]]
) -> list[bytes]:
    return [
        block(kind, pack_columns(typecodes, list(zip(*part, strict=True))))
        for part in _parts(rows, _CHUNK)
    ]


def _parts(rows: Sequence[_Row], size: int) -> Iterator[Sequence[_Row]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


class TablesReader:
    """Resolves the numbers in a section's samples; every method raises Damaged."""

    def __init__(self) -> None:
        self._strings: list[str] = []
        self._text = 0
        self._frames: list[Frame] = []
        self._parents = array("I", [0])
        self._leaves = array("I", [0])
        self._depths = array("H", [0])
        self._threads: list[RubyThread] = []
        self._taken = 0
        self._stacks: dict[int, Stack] = {}
        self._kept = 0

    def add(self, kind: int, payload: bytes) -> None:
        """Add a block; blocks that are not tables are ignored."""
        if kind == BlockType.STRINGS:
            self._add_strings(payload)
        elif kind == BlockType.FRAMES:
            self._add_frames(payload)
        elif kind == BlockType.STACKS:
            self._add_stacks(payload)
        elif kind == BlockType.THREADS:
            self._add_threads(payload)

    def _add_strings(self, payload: bytes) -> None:
        (lengths,), data = unpack_columns("I", payload)
        self._text += len(data)
        ends = list(accumulate(lengths, initial=0))
        if ends[-1] != len(data) or self._text > MAX_TEXT:
            raise Damaged("strings of the wrong length")
        _check_room(self._strings, lengths)
        for start, end in pairwise(ends):
            text = data[start:end].decode("utf-8", "replace")
            self._strings.append(text if text.isprintable() else printable(text))

    def _add_frames(self, payload: bytes) -> None:
        columns, _ = unpack_columns(FRAME_COLUMNS, payload)
        _check_room(self._frames, columns[0])
        strings = self._strings
        try:
            for kind, name, label, path, line in zip(*columns, strict=True):
                self._frames.append(
                    Frame(
                        _KINDS.get(kind, FrameKind.MARKER),
                        strings[name],
                        strings[label],
                        strings[path],
                        line - 1 if line else None,
                    )
                )
        except IndexError:
            raise Damaged("a frame with a missing string") from None

    def _add_stacks(self, payload: bytes) -> None:
        (distances, leaves), _ = unpack_columns(STACK_COLUMNS, payload)
        _check_room(self._parents, distances)
        for distance, leaf in zip(distances, leaves, strict=True):
            number = len(self._parents)
            if not 0 < distance <= number or leaf >= len(self._frames):
                raise Damaged("a stack of missing frames")
            depth = self._depths[number - distance] + 1
            if depth > MAX_DEPTH:
                raise Damaged("a stack that is too deep")
            self._parents.append(number - distance)
            self._leaves.append(leaf)
            self._depths.append(depth)

    def _add_threads(self, payload: bytes) -> None:
        columns, _ = unpack_columns(THREAD_COLUMNS, payload)
        _check_room(self._threads, columns[0])
        for pid, tid, address, name, ractor, main in zip(*columns, strict=True):
            if name >= len(self._strings):
                raise Damaged("a thread with a missing name")
            self._threads.append(
                RubyThread(
                    pid, tid or None, address, self._strings[name], ractor, bool(main)
                )
            )

    def take_threads(self) -> list[RubyThread]:
        """Return the new threads since the last call."""
        new = self._threads[self._taken :]
        self._taken += len(new)
        return new

    def thread(self, number: int) -> RubyThread:
        try:
            return self._threads[number]
        except IndexError:
            raise Damaged("a sample of a missing thread") from None

    def stack(self, number: int) -> Stack:
        """Return the stack of a number: the same object, unless evicted meanwhile."""
        known = self._stacks.get(number)
        if known is not None:
            return known
        if number >= len(self._parents):
            raise Damaged("a sample of a missing stack")
        if self._kept > _STACKS_KEPT:
            self._stacks.clear()
            self._kept = 0
        stack = self._stacks[number] = Stack(self._path(number))
        self._kept += 1 + len(stack.frames)
        return stack

    def _path(self, number: int) -> tuple[Frame, ...]:
        frames = []
        while number:
            frames.append(self._frames[self._leaves[number]])
            number = self._parents[number]
        return tuple(reversed(frames))


_KINDS = {int(kind): kind for kind in FrameKind}


def _check_room(table: Sized, more: Sized) -> None:
    if len(table) + len(more) > _MAX_ENTRIES:
        raise Damaged("a table that is too large")
