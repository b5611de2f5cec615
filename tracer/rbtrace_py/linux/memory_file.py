"""Memory of a process through ``/proc/PID/mem``, which allows writing."""

from __future__ import annotations

import os

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process, gone

_ENDING = 0.05
"""Seconds within which a process without memory has ended."""


class MemoryFile(Closing):
    """Memory of a running process, readable and writable.

    Writes ignore page protection: check first that the pages are writable. Opening
    needs the permission to attach. The file belongs to the program at the time of
    opening; after an exec, reads fail.

    Raises:
        NotPermitted: The kernel denied permission.
        NoSuchTarget: The process has ended.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._fd = process.open("mem", os.O_RDWR)

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes; raises UnreadableMemory or NoSuchTarget."""
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError):
            data = b""
        if len(data) != size:
            raise self._error("read", address, size)
        return data

    def write(self, address: int, data: bytes) -> None:
        """Write all of ``data``; raises UnreadableMemory or NoSuchTarget."""
        try:
            count = os.pwrite(self._fd, data, address)
        except (OSError, OverflowError):
            count = 0
        if count != len(data):
            raise self._error("write", address, len(data))

    def _error(self, doing: str, address: int, size: int) -> Exception:
        # A killed process loses its memory before it has ended.
        if self._process.wait(_ENDING):
            return gone(self._process.pid)
        place = f"{size} bytes at {address:#x}"
        return UnreadableMemory(f"process {self._process.pid}: cannot {doing} {place}")

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
