"""Reading a BPF ring buffer (kernel/bpf/ringbuf.c) from Python."""

from __future__ import annotations

import mmap
import select
import struct
from collections.abc import Iterator

from rbtrace_py.bpf.maps import Map

_BUSY = 1 << 31
_DISCARD = 1 << 30
_HEADER = 8


class RingBuffer:
    """The consumer of a ring.

    The first page contains our position, the second the kernel's. The data follows; the
    kernel maps it twice, so that records are contiguous.
    """

    def __init__(self, ring: Map) -> None:
        page = mmap.PAGESIZE
        size = ring.spec.max_entries
        self._mask = size - 1
        self._fd = ring.fd
        self._ours = mmap.mmap(
            ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._theirs = mmap.mmap(
            ring.fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._positions = memoryview(self._ours)[:8].cast("Q")
        self._produced = memoryview(self._theirs)[:8].cast("Q")
        self._data = memoryview(self._theirs)[page:]
        self._poll = select.poll()
        self._poll.register(ring.fd, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for a record; return False after ``seconds`` without one."""
        return bool(self._poll.poll(int(seconds * 1000)))

    def records(self) -> Iterator[bytes]:
        """Yield the records that are ready, and release the space of each.

        Records that arrive meanwhile remain for the next call. Otherwise a busy target
        could keep the caller here forever.
        """
        position = self._positions[0]
        end = self._produced[0]
        while position < end:
            at = position & self._mask
            (length,) = struct.unpack_from("<I", self._data, at)
            if length & _BUSY:
                return
            size = length & ~(_BUSY | _DISCARD)
            record = None
            if not length & _DISCARD:
                record = bytes(self._data[at + _HEADER : at + _HEADER + size])
            position += (size + _HEADER + 7) & ~7
            self._positions[0] = position
            if record is not None:
                yield record

    @property
    def is_behind(self) -> bool:
        """True if there are unread records, which may be incomplete."""
        return bool(self._positions[0] < self._produced[0])

    def close(self) -> None:
        self._positions.release()
        self._produced.release()
        self._data.release()
        self._ours.close()
        self._theirs.close()
