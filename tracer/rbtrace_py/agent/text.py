"""The text of the code, in memory of the process where it can stay."""

from __future__ import annotations

from collections.abc import Iterable

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memfile import MemoryFile

_ALIGN = 16


class NoRoom(RbtraceError):
    """No zeroed memory that is large enough."""


class Text:
    """A NUL-ended text at ``address``, written at once, blanked when it has served.

    It is read by the process at some later time, perhaps just when we write: so its
    first byte, without which it is empty, is the last to come and the first to go.
    """

    def __init__(
        self, memory: MemoryFile, rooms: Iterable[tuple[int, int]], text: bytes
    ) -> None:
        """Raises NoRoom, ValueError for a NUL in ``text``, UnreadableMemory."""
        if b"\0" in text or not text:
            raise ValueError("a text to be evaluated must not be empty or hold NUL")
        self._memory = memory
        self._size = len(text)
        self.address = _place(memory, rooms, len(text) + 1)
        memory.write(self.address + 1, text[1:])
        memory.write(self.address, text[:1])

    def blank(self) -> None:
        """Make it an empty text; evaluated later, it does nothing."""
        self._memory.write(self.address, b"\0")
        self._memory.write(self.address, bytes(self._size))


def _place(memory: MemoryFile, rooms: Iterable[tuple[int, int]], size: int) -> int:
    """The first place with ``size`` zeros up to the end of a room.

    Behind what is there: the text of one who was killed, and which may yet be read.
    """
    for start, length in rooms:
        used = len(memory.read(start, length).rstrip(b"\0"))
        # A NUL stays between.
        free = start + used + 1 if used else start
        free += -free % _ALIGN
        if free + size <= start + length:
            return free
    raise NoRoom(
        f"no room for {size} bytes of code in the process",
        "restart it with the agent: ruby -rtracepoint/agent",
    )
