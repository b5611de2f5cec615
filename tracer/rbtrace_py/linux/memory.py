"""Memory of a target, behind a minimal protocol.

Code that uses only ``Memory`` works on a process and on a core file.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from rbtrace_py.errors import (
    NotPermitted,
    RbtraceError,
    UnreadableMemory,
)
from rbtrace_py.linux.permission import explain_denied
from rbtrace_py.linux.process import Process, gone

LARGEST_READ = 1 << 26
"""Maximum bytes of one read or gather; a larger size is corrupt data."""

_MOST_RANGES = 1024
"""IOV_MAX of Linux (include/uapi/linux/uio.h)."""

_MOST_PLANS = 1 << 10

_ONE_RANGE = struct.Struct("=4Q")
"""Two ``struct iovec`` {address, size}: the local and the remote one."""
_VECTOR_SIZE = 16


class Memory(Protocol):
    """Bytes by address. Raises UnreadableMemory for an unmapped address."""

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        ...

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size), with one system call.

        The ranges are read in order. Name a range twice to detect whether it changed
        meanwhile.
        """
        ...


class _Plan:
    """A prepared system call: its vectors, and how to split the result."""

    __slots__ = ("cut", "local", "local_at", "ranges", "remote", "remote_at", "total")

    def __init__(self, ranges: Sequence[tuple[int, int]], buffer: int) -> None:
        self.ranges = list(ranges)
        sizes = [size for _, size in ranges]
        self.total = sum(sizes)
        try:
            self.remote = array("Q", chain.from_iterable(ranges))
            self.cut = struct.Struct("".join(f"{size}s" for size in sizes))
        except (OverflowError, struct.error):
            raise _impossible() from None
        self.local = ctypes.create_string_buffer(struct.pack("=2Q", buffer, self.total))
        self.remote_at = self.remote.buffer_info()[0]
        self.local_at = ctypes.addressof(self.local)


def _impossible() -> UnreadableMemory:
    return UnreadableMemory("invalid address or size")


def gathered(
    memory: Memory, ranges: Sequence[tuple[int, int]]
) -> Iterator[bytes | None]:
    """Yield the bytes of each (address, size), or None for unreadable memory.

    This reads any number of small ranges, many per system call. Raises NoSuchTarget and
    NotPermitted.
    """
    for start in range(0, len(ranges), _MOST_RANGES):
        some = tuple(ranges[start : start + _MOST_RANGES])
        try:
            yield from memory.gather(some)
        except UnreadableMemory:
            for address, size in some:
                try:
                    yield memory.read(address, size)
                except UnreadableMemory:
                    yield None


class ProcessMemory:
    """Memory of a running process, read with process_vm_readv(2).

    Repeated reads of the same ranges reuse their buffers, so an object serves only one
    thread. Raises NotPermitted with the reason, NoSuchTarget if the process has ended,
    and UnreadableMemory for an unmapped address.

    process_vm_readv takes a pid, which another process may get at any time. Pass
    ``process`` to check after each read that it still has its pid. Only then are the
    bytes its own.
    """

    def __init__(self, pid: int, process: Process | None = None) -> None:
        self.pid = pid
        self._process = process
        self._room = 0
        self._vectors = ctypes.create_string_buffer(_ONE_RANGE.size)
        self._vectors_at = ctypes.addressof(self._vectors)
        self._reserve(1 << 16)

    def _reserve(self, size: int) -> None:
        self._room = 1 << (size - 1).bit_length()
        self._buffer = ctypes.create_string_buffer(self._room)
        self._buffer_at = ctypes.addressof(self._buffer)
        self._plans: dict[int, _Plan] = {}

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes at ``address``."""
        self._check(size)
        # Thread lists and names take many small reads that are never repeated.
        vectors, at = self._vectors, self._vectors_at
        try:
            _ONE_RANGE.pack_into(vectors, 0, self._buffer_at, size, address, size)
        except struct.error:
            raise _impossible() from None
        got = _process_vm_readv(self.pid, at, 1, at + _VECTOR_SIZE, 1, 0)
        self._check_pid()
        if got != size:
            raise self._error(got, ((address, size),))
        return ctypes.string_at(self._buffer_at, size)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size), at most 1024 of them.

        Passing the same list again is fastest.
        """
        plan = self._plans.get(id(ranges))
        if plan is None or plan.ranges != ranges:
            plan = self._plan(ranges)
            if isinstance(ranges, list):
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[id(ranges)] = plan
        return self._run(plan)

    def _plan(self, ranges: Sequence[tuple[int, int]]) -> _Plan:
        if len(ranges) > _MOST_RANGES:
            raise UnreadableMemory(f"cannot read {len(ranges)} places at once")
        self._check(sum(pair[1] for pair in ranges))
        return _Plan(ranges, self._buffer_at)

    def _check(self, size: int) -> None:
        if size > LARGEST_READ or size < 0:
            raise UnreadableMemory(f"cannot read {size} bytes at once")
        if size > self._room:
            self._reserve(size)

    def _run(self, plan: _Plan) -> list[bytes]:
        count = len(plan.ranges)
        got = _process_vm_readv(self.pid, plan.local_at, 1, plan.remote_at, count, 0)
        self._check_pid()
        if got != plan.total:
            raise self._error(got, plan.ranges)
        return list(plan.cut.unpack_from(self._buffer))

    def _check_pid(self) -> None:
        if self._process is not None and not self._process.has_its_pid():
            raise gone(self.pid)

    def _error(self, got: int, ranges: Sequence[tuple[int, int]]) -> RbtraceError:
        code = ctypes.get_errno() if got < 0 else errno.EFAULT
        if code == errno.ESRCH:
            return gone(self.pid)
        if code in (errno.EPERM, errno.EACCES):
            return explain_denied(self.pid, "the memory")
        if code == errno.ENOSYS:
            return NotPermitted(
                "process_vm_readv is not available",
                "Run outside the sandbox that forbids it, or on another kernel",
            )
        places = ", ".join(f"{size} bytes at {at:#x}" for at, size in ranges[:4])
        return UnreadableMemory(f"process {self.pid}: cannot read {places}")


def _load() -> ctypes._NamedFuncPointer:
    libc = ctypes.CDLL(None, use_errno=True)
    function = libc.process_vm_readv
    pointer, number = ctypes.c_void_p, ctypes.c_ulong
    function.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
    function.restype = ctypes.c_ssize_t
    return function


_process_vm_readv = _load()
