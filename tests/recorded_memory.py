"""Memory that is read once, saved in a file, and read again: the fixtures' format."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence

from rbtrace_py.errors import BadRecording, UnreadableMemory
from rbtrace_py.linux.memory import LARGEST_READ, Memory

_MAGIC = b"rbmemory1\n"
_RUN = struct.Struct("<QI")


class RecordingMemory:
    """A memory that forwards reads to ``inner`` and records their results for replay.

    If an address is read again, the last bytes are kept.
    """

    def __init__(self, inner: Memory) -> None:
        self._inner = inner
        self._pages: dict[int, bytearray] = {}
        self._known: dict[int, bytearray] = {}

    def read(self, address: int, size: int) -> bytes:
        """Read from the inner memory and record the result."""
        data = self._inner.read(address, size)
        self._keep(address, data)
        return data

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Gather from the inner memory and record the results."""
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
        """Return everything that was read, compressed, for ReplayMemory."""
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
    """Append a run, and join it to the previous one if they are adjacent."""
    if runs and runs[-1][0] + len(runs[-1][1]) == address:
        runs[-1] = (runs[-1][0], runs[-1][1] + data)
    else:
        runs.append((address, data))


class ReplayMemory:
    """The memory that a RecordingMemory recorded. Raises BadRecording for other
    ``data``."""

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
        """Return (address, size) of each recorded piece, by address."""
        return [(start, len(self._runs[start])) for start in self._starts]

    def read(self, address: int, size: int) -> bytes:
        """Return bytes that were read during the recording."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and size >= 0:
            start = self._starts[place]
            found = self._runs[start][address - start : address - start + size]
            if len(found) == size:
                return found
        raise UnreadableMemory(f"{size} bytes at {address:#x} were not recorded")

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the recorded bytes of each range."""
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
