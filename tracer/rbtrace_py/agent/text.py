"""The text of the code, in memory of the process where it can stay.

A room that is used begins with a mark; texts follow, each ended by a NUL. What a tracer
that was killed has left there stays until there is no more room, as it may yet be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memfile import MemoryFile

MARK = b"rbtrace-py text\0"
_ALIGN = 16
_READING = 0.002
"""Seconds after which who began to read a text has read it."""


class NoRoom(RbtraceError):
    """No zeroed memory that is large enough."""


class Text:
    """A text at ``address``, blanked when it has served.

    It is read by the process at some later time, perhaps just when we write: so its
    first byte, without which it is empty, is the last to come and the first to go.
    One who writes must have seized the process, so that there are no two.
    """

    def __init__(
        self, memory: MemoryFile, rooms: Iterable[tuple[int, int]], text: bytes
    ) -> None:
        """Raises NoRoom, ValueError for a NUL in ``text``, UnreadableMemory."""
        if b"\0" in text or not text:
            raise ValueError("a text to be evaluated must not be empty or hold NUL")
        self._memory = memory
        self._size = len(text)
        self._room, self._length, self.address = _place(memory, rooms, len(text) + 1)
        memory.write(self._room, MARK)
        memory.write(self.address + 1, text[1:])
        memory.write(self.address, text[:1])

    def blank(self) -> None:
        """Make it an empty text; evaluated later, it does nothing."""
        self._memory.write(self.address, b"\0")
        self._memory.write(self.address, bytes(self._size))
        used = self._memory.read(self._room, self._length)
        if not used[len(MARK) :].strip(b"\0"):
            self._memory.write(self._room, bytes(len(MARK)))


def _place(
    memory: MemoryFile, rooms: Iterable[tuple[int, int]], size: int
) -> tuple[int, int, int]:
    """A room, its length, and a place for ``size`` bytes in it."""
    full: list[tuple[int, int]] = []
    for start, length in _aligned(rooms):
        data = memory.read(start, length)
        used = len(data.rstrip(b"\0"))
        if used and not data.startswith(MARK):
            continue
        # A NUL stays between.
        free = start + max(used + 1, len(MARK))
        free += -free % _ALIGN
        if free + size <= start + length:
            return start, length, free
        if used and len(MARK) + size <= length:
            full.append((start, length))
    for start, length in full:
        _empty(memory, start + len(MARK), length - len(MARK))
        return start, length, start + len(MARK)
    raise NoRoom(
        f"no room for {size} bytes of code in the process",
        "load the agent in the program itself: ruby -rtracepoint/agent",
    )


def _aligned(rooms: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    for start, length in rooms:
        lost = -start % _ALIGN
        if length > lost + len(MARK):
            yield start + lost, length - lost


def _empty(memory: MemoryFile, start: int, length: int) -> None:
    """Texts of those who were killed: none begins any more, then there is none."""
    data = memory.read(start, length)
    for at in range(0, length, _ALIGN):
        if data[at] and (at == 0 or data[at - 1] == 0):
            memory.write(start + at, b"\0")
    time.sleep(_READING)
    memory.write(start, bytes(length))
