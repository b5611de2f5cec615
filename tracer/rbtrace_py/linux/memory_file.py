"""Memory of a process through ``/proc/PID/mem``: the way that can write."""

from __future__ import annotations

import os

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process, gone

_ENDING = 0.05
"""Seconds in which one whose memory is gone will have ended."""


class MemoryFile(Closing):
    """Read and write while it runs. What is written goes through the protection of
    pages: check first that they are writable.

    Opening it asks what attaching asks: raises NotPermitted, NoSuchTarget. The program
    that it was opened for is meant, also after an exec: then nothing can be read.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._fd = process.open("mem", os.O_RDWR)

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes; raises UnreadableMemory, NoSuchTarget."""
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError):
            data = b""
        if len(data) != size:
            raise self._error("read", address, size)
        return data

    def write(self, address: int, data: bytes) -> None:
        """Write all of it; raises UnreadableMemory, NoSuchTarget."""
        try:
            count = os.pwrite(self._fd, data, address)
        except (OSError, OverflowError):
            count = 0
        if count != len(data):
            raise self._error("write", address, len(data))

    def _error(self, doing: str, address: int, size: int) -> Exception:
        # The memory of a killed process goes first.
        if self._process.wait(_ENDING):
            return gone(self._process.pid)
        place = f"{size} bytes at {address:#x}"
        return UnreadableMemory(f"process {self._process.pid}: cannot {doing} {place}")

    def close(self) -> None:
        """Close it; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
