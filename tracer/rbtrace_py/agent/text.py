"""The text of the code, in memory of the process's own where it can stay.

The memory is a mapping that the process makes at the first attach, and keeps: a text
may be evaluated late, and Ruby's table of postponed jobs (3.3 and later) names it until
the process ends. A later tracer finds it by its address, and uses it again.
"""

from __future__ import annotations

import time

from rbtrace_py.agent.refusal import refuse
from rbtrace_py.linux.maps import Mapping, mappings
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process

ROOM_SIZE = 128 << 10
"""Bytes of the mapping, whose pages cost memory where a text was written."""

_PAGE = 4096
_LOWEST = 1 << 45
_READING = 0.002
"""Seconds after which a thread that began to read a text has read it."""


def room_address(vm: int) -> int:
    """Return the address of the mapping in a process whose VM is at ``vm``.

    The same for every tracer of a process, in its forked children too, and as hard to
    guess as the VM's own address. On x86-64, 2^45 to 2^46 is far from where programs,
    libraries, heaps and the shadow memory of sanitizers are.
    """
    return _LOWEST + (vm >> 2 & -_PAGE)


def is_room(process: Process, address: int) -> bool:
    """Is the mapping there? Raises Refused if there is another."""
    for mapping in mappings(process):
        if mapping.start < address + ROOM_SIZE and address < mapping.end:
            if _is_ours(mapping, address):
                return True
            raise refuse(process, f"something else is mapped at {address:#x}")
    return False


def _is_ours(mapping: Mapping, address: int) -> bool:
    is_whole = (mapping.start, mapping.end) == (address, address + ROOM_SIZE)
    return is_whole and mapping.is_writable and not mapping.path


class Text:
    """A text at ``address``, blanked when it has served.

    The process reads it at some later time, perhaps just when we write: so its first
    byte, without which it is empty, is the last to come and the first to go. A writer
    must have seized the process, so that there are never two.
    """

    def __init__(self, memory: MemoryFile, address: int, text: bytes) -> None:
        """Raises ValueError for a text that cannot stand there, UnreadableMemory."""
        if b"\0" in text or not 0 < len(text) < ROOM_SIZE:
            raise ValueError("the code must fit and must not contain NUL")
        self._memory = memory
        self.address = address
        if memory.read(address, 1) != b"\0":
            # The mapping of a tracer that was killed.
            self.blank()
            time.sleep(_READING)
        memory.write(address + 1, text[1:])
        memory.write(address, text[:1])

    def blank(self) -> None:
        """Make it an empty text; evaluated later, it does nothing."""
        self._memory.write(self.address, b"\0")
        used = self._memory.read(self.address, ROOM_SIZE).rstrip(b"\0")
        self._memory.write(self.address, bytes(len(used)))
