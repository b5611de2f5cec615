"""Memory of a target, through a narrow protocol.

A walker that knows only ``Memory`` works on a process, a core file and a recording.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from rbtrace_py.errors import (
    BadRecording,
    NoSuchTarget,
    NotPermitted,
    RbtraceError,
    UnreadableMemory,
)
from rbtrace_py.linux.permission import explain_denied

LARGEST_READ = 1 << 26
"""Bytes of one read or gather at most: a size that is beyond it is a lie."""

_MOST_RANGES = 1024
"""IOV_MAX of Linux (include/uapi/linux/uio.h)."""

_MOST_PLANS = 1 << 10

_ONE_RANGE = struct.Struct("=4Q")
"""Two ``struct iovec`` {address, size}: where to, and where from."""
_VECTOR_SIZE = 16

_MAGIC = b"rbmemory1\n"
_RUN = struct.Struct("<QI")


class Memory(Protocol):
    """Bytes by address. Raises UnreadableMemory where there are none."""

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        ...

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size), with one system call.

        They are read in that order, so that a range named twice tells whether it
        changed meanwhile.
        """
        ...


class _Plan:
    """One system call, ready to be made: its vectors, and how to cut what it gives."""

    __slots__ = ("cut", "local", "local_at", "ranges", "remote", "remote_at", "total")

    def __init__(self, ranges: Sequence[tuple[int, int]], buffer: int) -> None:
        words = [word for pair in ranges for word in pair]
        self.ranges = list(ranges)
        self.total = sum(pair[1] for pair in ranges)
        try:
            self.remote = ctypes.create_string_buffer(
                struct.pack(f"={len(words)}Q", *words)
            )
            self.cut = struct.Struct("".join(f"{pair[1]}s" for pair in ranges))
        except struct.error:
            raise _impossible() from None
        self.local = ctypes.create_string_buffer(struct.pack("=2Q", buffer, self.total))
        self.remote_at = ctypes.addressof(self.remote)
        self.local_at = ctypes.addressof(self.local)


def _impossible() -> UnreadableMemory:
    return UnreadableMemory("an address or a size that cannot be")


class ProcessMemory:
    """Memory of a running process, read with process_vm_readv(2).

    Nothing is made for a read of ranges that were read before but its result: so one
    object serves one thread. Raises NotPermitted with the reason, NoSuchTarget once
    the process is gone, UnreadableMemory for what is not mapped.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
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
        # A list of many threads, or a name, takes many small reads, each of them once.
        vectors, at = self._vectors, self._vectors_at
        try:
            _ONE_RANGE.pack_into(vectors, 0, self._buffer_at, size, address, size)
        except struct.error:
            raise _impossible() from None
        got = _process_vm_readv(self.pid, at, 1, at + _VECTOR_SIZE, 1, 0)
        if got != size:
            raise self._error(got, ((address, size),))
        return ctypes.string_at(self._buffer_at, size)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size); at most 1024 of them.

        It is fastest where it is given the same list again.
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
            raise UnreadableMemory(f"{len(ranges)} places at once")
        self._check(sum(pair[1] for pair in ranges))
        return _Plan(ranges, self._buffer_at)

    def _check(self, size: int) -> None:
        if size > LARGEST_READ or size < 0:
            raise UnreadableMemory(f"{size} bytes at once are more than is read")
        if size > self._room:
            self._reserve(size)

    def _run(self, plan: _Plan) -> list[bytes]:
        count = len(plan.ranges)
        got = _process_vm_readv(self.pid, plan.local_at, 1, plan.remote_at, count, 0)
        if got != plan.total:
            raise self._error(got, plan.ranges)
        return list(plan.cut.unpack_from(self._buffer))

    def _error(self, got: int, ranges: Sequence[tuple[int, int]]) -> RbtraceError:
        code = ctypes.get_errno() if got < 0 else errno.EFAULT
        if code == errno.ESRCH:
            return NoSuchTarget(f"process {self.pid} has ended")
        if code in (errno.EPERM, errno.EACCES):
            return explain_denied(self.pid, "the memory")
        if code == errno.ENOSYS:
            return NotPermitted(
                "process_vm_readv is not there", "a sandbox or the kernel forbids it"
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


class RecordingMemory:
    """Passes reads on to ``inner`` and keeps what they gave, to be replayed.

    Of a place that is read again the last bytes are kept.
    """

    def __init__(self, inner: Memory) -> None:
        self._inner = inner
        self._pages: dict[int, bytearray] = {}
        self._known: dict[int, bytearray] = {}

    def read(self, address: int, size: int) -> bytes:
        """Read from the inner memory, and keep it."""
        data = self._inner.read(address, size)
        self._keep(address, data)
        return data

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Gather from the inner memory, and keep it."""
        found = self._inner.gather(ranges)
        for (address, _), data in zip(ranges, found, strict=True):
            self._keep(address, data)
        return found

    def _keep(self, address: int, data: bytes) -> None:
        place = 0
        while place < len(data):
            page, into = divmod(address + place, 4096)
            size = min(4096 - into, len(data) - place)
            page_bytes = self._pages.setdefault(page, bytearray(4096))
            page_bytes[into : into + size] = data[place : place + size]
            known = self._known.setdefault(page, bytearray(4096))
            known[into : into + size] = b"\1" * size
            place += size

    def dump(self) -> bytes:
        """Return all that was read, compressed, for ReplayMemory."""
        body = bytearray()
        for address, data in self._runs():
            body += _RUN.pack(address, len(data)) + data
        return _MAGIC + zlib.compress(bytes(body), 9)

    def _runs(self) -> list[tuple[int, bytes]]:
        runs: list[tuple[int, bytes]] = []
        for page in sorted(self._pages):
            data, known = self._pages[page], self._known[page]
            start = known.find(1)
            while start >= 0:
                end = known.find(0, start)
                end = 4096 if end < 0 else end
                _append(runs, page * 4096 + start, bytes(data[start:end]))
                start = known.find(1, end)
        return runs


def _append(runs: list[tuple[int, bytes]], address: int, data: bytes) -> None:
    """Append a run, joined to the one before where they touch."""
    if runs and runs[-1][0] + len(runs[-1][1]) == address:
        runs[-1] = (runs[-1][0], runs[-1][1] + data)
    else:
        runs.append((address, data))


class ReplayMemory:
    """What a RecordingMemory kept. Raises BadRecording if ``data`` is not that."""

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_MAGIC):
            raise BadRecording("no recording of memory")
        try:
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(data[len(_MAGIC) :], LARGEST_READ)
        except zlib.error as error:
            raise BadRecording(f"a damaged recording of memory: {error}") from None
        if not unpacker.eof:
            raise BadRecording("a recording of memory that was cut, or is too large")
        self._runs = dict(_parse(body))
        self._starts = sorted(self._runs)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(address, size) of each piece that was read, by address."""
        return [(start, len(self._runs[start])) for start in self._starts]

    def read(self, address: int, size: int) -> bytes:
        """Return bytes that were read when it was recorded."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and size >= 0:
            start = self._starts[place]
            found = self._runs[start][address - start : address - start + size]
            if len(found) == size:
                return found
        raise UnreadableMemory(f"{size} bytes at {address:#x} were not recorded")

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return what was read at each of the ranges."""
        return [self.read(address, size) for address, size in ranges]


def _parse(body: bytes) -> list[tuple[int, bytes]]:
    runs = []
    place = 0
    while place < len(body):
        if place + _RUN.size > len(body):
            raise BadRecording("a recording of memory that was cut")
        address, size = _RUN.unpack_from(body, place)
        place += _RUN.size
        if place + size > len(body):
            raise BadRecording("a recording of memory that was cut")
        runs.append((address, body[place : place + size]))
        place += size
    return runs
