"""Suspended fibers: found by their objects in memory, walked by their EC.

A VM has no list of its fibers. But each is the data of a Fiber object, and all these
objects refer to the same type. The address of the type is taken from the object of a
running fiber, and memory is searched for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from time import monotonic
from typing import NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.vm import ControlFrame, RubyVM, Walked

MOST_FIBERS = 1 << 14
_MOST_CANDIDATES = 1 << 18
"""Maximum occurrences of the type's address that are checked; most are fibers."""
MOST_BYTES = 16 << 30
"""Maximum bytes of memory that are searched."""
_CHUNK = 1 << 22
_MOST_PREVIOUS = 1 << 10
_MOST_RESUMED = 1 << 14
"""Maximum fibers of all threads together that resumed others."""
MOST_SECONDS = 20.0
"""Maximum seconds for walking fibers, of which a malicious target may have many."""

_T_DATA = 0x0C
_DATA = 32
"""Offset of data in ``struct RTypedData`` (rtypeddata.h)."""
_TYPE, _TYPE_4_0 = 16, 24
"""Offset of its type; since 4.0 the object's fields come before it."""
_CONT_SELF = (16, 8)
"""Offsets of ``rb_context_t.self`` (cont.c), after type, argc, kw_splat (2.7)."""
_WALKED_AT_ONCE = 64
"""Fibers walked between checks that the code read for them is unchanged."""
_FIBER_EMBEDS = 3
"""``typed_flag``: 1 is typed data, 2 that it is embedded (3.3 and later)."""


class FiberStatus(IntEnum):
    """``enum fiber_status`` (cont.c)."""

    CREATED = 0
    RESUMED = 1
    SUSPENDED = 2
    TERMINATED = 3


class Fiber(NamedTuple):
    """A fiber with a stack that its thread (``rb_thread_t``) does not run now."""

    address: int
    ec: int
    thread: int
    status: FiberStatus


class Fibers:
    """Finds and walks suspended fibers.

    Attributes:
        control_frames: Control frames of the walked fibers, by the fiber's address.

    Args:
        vm: The VM.
        symbols: Address of the global symbol table, as passed to the VM.
        regions: Writable memory, as (address, size).
    """

    def __init__(
        self,
        vm: RubyVM,
        symbols: int | None,
        regions: Sequence[tuple[int, int]],
    ) -> None:
        self._vm = vm
        self._symbols = symbols
        self._values = vm.values
        self._offsets = vm.layout.offsets
        self._regions = regions
        self._type_at = _TYPE_4_0 if vm.layout.traits.type_has_flag else _TYPE
        self.control_frames: dict[int, list[ControlFrame]] = {}

    @property
    def can_be_read(self) -> bool:
        """True if the layout contains the offsets of a fiber's fields."""
        offsets = self._offsets
        needed = (offsets.fiber_ec, offsets.fiber_status, offsets.ec_thread)
        return None not in needed and offsets.th_ec is not None

    def find(self, threads: Sequence[VmThread]) -> list[Fiber]:
        """Return the suspended fibers of these threads, by address."""
        if not self.can_be_read:
            return []
        found: dict[int, Fiber] = {}
        current = {thread.fiber for thread in threads}
        known = {thread.address for thread in threads}
        for address in self._addresses(threads):
            if address in current or address in found:
                continue
            fiber = self._fiber(address)
            if fiber is not None and fiber.thread in known:
                found[address] = fiber
            if len(found) >= MOST_FIBERS:
                break
        return sorted(found.values())

    def _addresses(self, threads: Sequence[VmThread]) -> Iterator[int]:
        """Yield fibers that resumed others, then those found in memory."""
        kinds = set()
        left = _MOST_RESUMED
        for thread in threads:
            for fiber in islice(self._chain(thread.fiber), left):
                left -= 1
                yield fiber
                found = self._object_of(fiber)
                if found is not None:
                    kinds.add(found[1])
        left = _MOST_CANDIDATES
        for kind in sorted(kinds)[:4]:
            for item in islice(self._items_with(kind), left):
                left -= 1
                address = struct.unpack_from("<Q", item, _DATA)[0]
                if self._type_of(item, address) == kind:
                    yield address

    def _chain(self, fiber: int) -> Iterator[int]:
        """Yield a thread's fiber, then the fiber that resumed it (``prev``), etc."""
        seen: set[int] = set()
        while fiber > 4096 and fiber not in seen and len(seen) < _MOST_PREVIOUS:
            seen.add(fiber)
            yield fiber
            if self._offsets.fiber_prev is None:
                return
            try:
                fiber = self._values.u64(fiber + self._offsets.fiber_prev)
            except UnreadableMemory:
                return

    def _object_of(self, fiber: int) -> tuple[int, int] | None:
        """Return the Fiber object of a fiber, and the address of its type.

        A thread's first fiber has no object until it has resumed another fiber.
        """
        for offset in _CONT_SELF:
            try:
                value = self._values.u64(fiber + offset)
                if self._values.is_object(value):
                    data = self._values.memory.read(value, 40)
                    kind = self._type_of(data, fiber)
                    if kind is not None:
                        return value, kind
            except UnreadableMemory:
                continue
        return None

    def _type_of(self, data: bytes, address: int) -> int | None:
        """Return the type of a typed object whose data is at ``address``, else None.

        Since 4.0, the result includes the flag of embedded data.
        """
        flags, _, *words, its = struct.unpack("<5Q", data)
        if flags & 0x1F != _T_DATA or its != address:
            return None
        if self._type_at == _TYPE_4_0:
            kind = words[1]
            return kind if kind > 4096 and kind & 6 == 0 else None
        kind, typed = words
        is_typed = typed & ~_FIBER_EMBEDS == 0 and typed & 1
        return kind if is_typed and kind > 4096 else None

    def _items_with(self, kind: int) -> Iterator[bytes]:
        """Yield the 40 bytes of each possible typed object of that type."""
        pattern = struct.pack("<Q", kind)
        for data in self._chunks():
            at = data.find(pattern)
            while at >= 0:
                start = at - self._type_at
                if at % 8 == 0 and start >= 0 and start + 40 <= len(data):
                    yield data[start : start + 40]
                at = data.find(pattern, at + 8 - at % 8)

    def _chunks(self) -> Iterator[bytes]:
        """Yield the regions in chunks that overlap by one object."""
        left = MOST_BYTES
        for start, size in self._regions:
            for place in range(start, start + size, _CHUNK):
                part = min(_CHUNK + 64, start + size - place)
                left -= part
                if left < 0:
                    return
                try:
                    yield self._values.memory.read(place, part)
                except UnreadableMemory:
                    continue

    def _fiber(self, address: int) -> Fiber | None:
        """Read a fiber; return None if it has no stack: not started, or ended."""
        offsets, values = self._offsets, self._values
        assert offsets.fiber_status is not None
        assert offsets.fiber_ec is not None
        assert offsets.ec_thread is not None
        try:
            # A two-bit field in an unsigned int.
            status = FiberStatus(values.u32(address + offsets.fiber_status) & 3)
            ec = address + offsets.fiber_ec
            thread = values.u64(ec + offsets.ec_thread)
        except UnreadableMemory:
            return None
        if status not in (FiberStatus.RESUMED, FiberStatus.SUSPENDED):
            return None
        return Fiber(address, ec, thread, status)

    def walk(self, fibers: Sequence[Fiber]) -> list[Walked | None]:
        """Return the stack of each fiber, None where it could not be read."""
        if not fibers:
            return []
        vm, end = self._vm, monotonic() + MOST_SECONDS
        memory = _FiberThreads(vm.memory, vm.layout.offsets.th_ec, fibers)
        reader = RubyVM(memory, vm.layout, vm.vm, self._symbols, zjit=vm.zjit)
        threads = [_Address(memory.address(index)) for index in range(len(fibers))]
        found: list[Walked | None] = []
        while len(found) < len(fibers) and monotonic() < end:
            reader.revalidate()
            start, part = len(found), threads[len(found) :][:_WALKED_AT_ONCE]
            found += reader.sample_all(part)
            for fiber, thread in zip(fibers[start:], part, strict=False):
                frames = reader.control_frames(thread)
                self.control_frames[fiber.address] = frames
        return found + [None] * (len(fibers) - len(found))


class _Address(NamedTuple):
    address: int


class _FiberThreads:
    """Memory with additional threads, each of which runs one of ``fibers``.

    Such a thread equals the fiber's own thread except for the EC. Its address is
    unmapped in the target.
    """

    _FIRST = 1 << 63
    _APART = 1 << 20

    def __init__(
        self, memory: Memory, th_ec: int | None, fibers: Sequence[Fiber]
    ) -> None:
        assert th_ec is not None
        self._memory = memory
        self._th_ec = th_ec
        self._fibers = fibers

    def address(self, index: int) -> int:
        """Return the address of the thread for a fiber's index."""
        return self._FIRST + index * self._APART

    def read(self, address: int, size: int) -> bytes:
        return self.gather([(address, size)])[0]

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        places = [self._place(at) for at, _ in ranges]
        found = self._memory.gather(
            [
                (at if fiber is None else fiber.thread + at, size)
                for (fiber, at), (_, size) in zip(places, ranges, strict=True)
            ]
        )
        return [
            data if fiber is None else self._patched(fiber, at, data)
            for (fiber, at), data in zip(places, found, strict=True)
        ]

    def _place(self, address: int) -> tuple[Fiber | None, int]:
        """Return the fiber of a thread's address and the offset in it, or no fiber."""
        index, offset = divmod(address - self._FIRST, self._APART)
        is_ours = 0 <= index < len(self._fibers)
        return (self._fibers[index], offset) if is_ours else (None, address)

    def _patched(self, fiber: Fiber, offset: int, data: bytes) -> bytes:
        at = self._th_ec - offset
        if not 0 <= at <= len(data) - 8:
            return data
        return data[:at] + fiber.ec.to_bytes(8, "little") + data[at + 8 :]
