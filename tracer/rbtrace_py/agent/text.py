"""The text of the injected code, in memory that stays in the process.

The process creates the mapping at the first attach and keeps it: a text may be
evaluated late, and Ruby's table of postponed jobs (3.3 and later) contains its address
until the process ends. A later tracer finds it by its address and reuses it.
"""

from __future__ import annotations

import time

from rbtrace_py.agent.refusal import refuse
from rbtrace_py.linux.maps import Mapping, mappings
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process

ROOM_SIZE = 128 << 10
"""Size of the mapping in bytes. Only pages with text use memory."""

_PAGE = 4096
_LOWEST = 1 << 45
_READING = 0.002
"""Seconds after which a thread that began to read a text has read it."""


def room_address(vm: int) -> int:
    """Return the address of the mapping in a process whose VM is at ``vm``.

    It is the same for every tracer of a process and in its forked children, and as hard
    to guess as the VM's address. On x86-64, 2^45 to 2^46 is far from programs,
    libraries, heaps, and the shadow memory of sanitizers.
    """
    return _LOWEST + (vm >> 2 & -_PAGE)


def is_room(process: Process, address: int) -> bool:
    """Return whether the mapping exists; raises Refused if the address is taken."""
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
    """A text at ``address``, blanked after use.

    The process may read it while we write. The first byte, without which the text is
    empty, is therefore written last and cleared first. A writer must have seized the
    process, so that there is only one.
    """

    def __init__(self, memory: MemoryFile, address: int, text: bytes) -> None:
        """Write the text; raises ValueError if it does not fit, or UnreadableMemory."""
        if b"\0" in text or not 0 < len(text) < ROOM_SIZE:
            raise ValueError("the code must fit and must not contain NUL")
        self._memory = memory
        self.address = address
        if memory.read(address, 1) != b"\0":
            # The mapping contains the text of a killed tracer.
            self.blank()
            time.sleep(_READING)
        memory.write(address + 1, text[1:])
        memory.write(address, text[:1])

    def blank(self) -> None:
        """Make the text empty, so that a later evaluation does nothing."""
        self._memory.write(self.address, b"\0")
        used = self._memory.read(self.address, ROOM_SIZE).rstrip(b"\0")
        self._memory.write(self.address, bytes(len(used)))
