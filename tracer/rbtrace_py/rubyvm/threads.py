"""The threads of a VM: their addresses, kernel threads, and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.rubyvm.layout import ThreadList
from rbtrace_py.rubyvm.layouts import parse
from rbtrace_py.rubyvm.native_ids import NativeIds
from rbtrace_py.rubyvm.values import Values

MOST_THREADS = 1 << 14
MOST_RACTORS = 1 << 10

_DATA_POINTER = 32
"""``RTypedData.data``, the pointer in a Thread object of 2.1."""

_LIST_HEAD_SIZE = 16
_LIST_PREVIOUS = 8
"""``struct list_head`` (ccan/list): next, and prev, which in a head is the last."""
_MARKED_RACTORS = 64
"""With more ractors than this, new threads of the others are noticed late."""

_OWN_NATIVE = {(3, 3): 4, (4, 1): 8}
"""``has_dedicated_nt``, a bit above the two of ``rb_thread_t.status``, by the first
version with this position. Since 4.1 ``main_thread`` comes before it."""

_STATES = {0: ThreadState.RUNNING, 1: ThreadState.SLEEPING, 2: ThreadState.SLEEPING}
"""enum rb_thread_status: runnable, stopped, stopped forever; killed is omitted."""


class VmThread(NamedTuple):
    """One thread, with the addresses of its structures.

    Attributes:
        tid: Its ID in the target's own namespace, or None if unknown.
        ec: Execution context of the fiber that it runs.
        fiber: That fiber, or 0 if unknown.
        running: Address of the word with the running thread or EC of its ractor, or VM.
        is_moving: True if it runs on any free native thread (M:N threads, since 3.3).
            Its ``tid`` is then only valid for a moment.
    """

    address: int
    tid: int | None
    name: str
    state: ThreadState
    ec: int
    fiber: int
    ractor: int = 1
    is_main: bool = False
    running: int = 0
    is_moving: bool = False


class Threads:
    """Lists the threads of the VM at ``vm``.

    Args:
        values: Reader of the VM's memory.
        vm: Address of ``rb_vm_t``.
        is_tid: Returns whether the target has a kernel thread with this ID. This
            verifies that a ``pthread_t`` was decoded correctly. None: unknown.
    """

    def __init__(
        self,
        values: Values,
        vm: int,
        is_tid: Callable[[int], bool] | None = None,
    ) -> None:
        self._values = values
        self._offsets = values.offsets
        self._vm = vm
        self._native = NativeIds(values, is_tid)
        self._has_running_ec = values.traits.has_ractors
        version = parse(values.layout.version)
        bits = [bit for since, bit in _OWN_NATIVE.items() if version >= since]
        self._own_native = bits[-1] if bits else None

    def all(self) -> list[VmThread]:
        """Return all threads of all ractors, the main thread first.

        A list that changes while it is read may lack threads that started or ended.

        Raises:
            UnreadableMemory: The VM is not at its address, or it disappeared before a
                thread was read, as in an exec.
        """
        found: dict[int, VmThread] = {}
        address = 0
        for address, ractor, main, running in self._addresses():
            if address not in found and len(found) < MOST_THREADS:
                thread = self._thread(address, ractor, address == main, running)
                if thread is not None:
                    found[address] = thread
        if address and not found:
            raise UnreadableMemory("no thread can be read")
        return sorted(found.values(), key=lambda thread: not thread.is_main)

    def _addresses(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each thread's address, ractor number, main thread, and running word."""
        main = self._main_thread()
        if not self._values.traits.has_ractors:
            running = self._place(self._vm, self._offsets.vm_running_thread)
            for address in self._vm_threads(main):
                yield address, 1, main, running
            return
        left = MOST_THREADS
        for number, ractor in enumerate(self._ractors(), 1):
            running = self._place(ractor, self._offsets.ractor_running_ec)
            head = self._place(ractor, self._offsets.ractor_threads)
            node = self._offsets.th_list_node or 0
            for address in self._list(head, node, left):
                left -= 1
                yield address, number, main, running

    def marks(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return memory (address, size) that changes when a thread joins.

        It consists of both ends of each list, because the VM appends threads, and of
        the object and native thread of the last thread, because its memory may have
        belonged to an ended thread. The addresses of these last threads are returned
        too. Up to 2.1 there is no such memory.
        """
        places: list[tuple[int, int]] = []
        newest: list[int] = []
        node = self._offsets.th_list_node or 0
        for head in self._heads():
            places.append((head, _LIST_HEAD_SIZE))
            last = self._values.u64(head + _LIST_PREVIOUS)
            if last not in (head, 0):
                newest.append(last - node)
                if self._offsets.th_self is not None:
                    places.append((last - node + self._offsets.th_self, 8))
                places += self._native.places(last - node)
        return places, newest

    def _heads(self) -> Iterator[int]:
        """Yield the addresses of the heads of the thread lists."""
        offsets = self._offsets
        if self._values.traits.has_ractors:
            for ractor in self._ractors()[:_MARKED_RACTORS]:
                yield self._place(ractor, offsets.ractor_threads)
        elif (
            offsets.vm_threads is not None
            and self._values.traits.thread_list is not ThreadList.ST_TABLE
        ):
            yield self._vm + offsets.vm_threads

    def _place(self, base: int, offset: int | None) -> int:
        return 0 if offset is None else base + offset

    def _main_thread(self) -> int:
        place = self._place(self._vm, self._offsets.vm_main_thread)
        return self._values.u64(place) if place else 0

    def _ractors(self) -> list[int]:
        """Return the addresses of the ractors, the main ractor first."""
        offsets = self._offsets
        main = self._place(self._vm, offsets.vm_main_ractor)
        found = [self._values.u64(main)] if main else []
        if offsets.vm_ractors is not None and offsets.ractor_list_node is not None:
            head = self._vm + offsets.vm_ractors
            found += self._list(head, offsets.ractor_list_node, MOST_RACTORS)
        return [ractor for ractor in dict.fromkeys(found) if ractor > 4096]

    def _vm_threads(self, main: int) -> list[int]:
        """Return the threads of a VM without ractors."""
        offsets = self._offsets
        if offsets.vm_threads is None:
            return [main] if main else []
        place = self._vm + offsets.vm_threads
        if self._values.traits.thread_list is ThreadList.ST_TABLE:
            found = list(self._table_threads(self._values.u64(place)))
        else:
            found = list(self._list(place, offsets.th_list_node or 0, MOST_THREADS))
        return [*([main] if main and main not in found else []), *found]

    def _table_threads(self, table: int) -> Iterator[int]:
        """Yield the threads of 2.1, the keys of ``living_threads``."""
        for value, _ in self._values.st_table(table):
            if self._values.is_object(value):
                yield self._values.u64(value + _DATA_POINTER)

    def _list(self, head: int, node: int, most: int) -> Iterator[int]:
        """Walk a list_head (ccan/list), whose nodes are in the structures."""
        seen = 0
        place = self._values.u64(head)
        while place != head and place > 4096 and place & 7 == 0 and seen < most:
            yield place - node
            seen += 1
            try:
                place = self._values.u64(place)
            except UnreadableMemory:
                return

    def _thread(
        self, address: int, ractor: int, is_main: bool, running: int
    ) -> VmThread | None:
        try:
            ec = self.ec_of(address)
            status = self._values.memory.read(address + self._offsets.th_status, 1)[0]
            now = self._values.u64(running) if running else None
            return VmThread(
                address=address,
                tid=self._native.tid(address),
                name=self._name(address),
                state=self.state(status, address, ec, now),
                ec=ec,
                fiber=self._fiber(ec),
                ractor=ractor,
                is_main=is_main,
                running=running,
                is_moving=self._own_native is not None
                and not status & self._own_native,
            )
        except UnreadableMemory:
            return None

    def tids(self, addresses: Sequence[int]) -> list[int | None]:
        """Return the current ``tid`` of each thread, in a Ruby with native threads.

        Raises UnreadableMemory.
        """
        return self._native.tids(addresses)

    def bases(self, addresses: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the ``pthread_t``, address, and context of each thread that has all."""
        for address in addresses:
            try:
                base, ec = self._native.base(address), self.ec_of(address)
            except UnreadableMemory:
                continue
            if base and ec:
                yield base, address, ec

    def ec_of(self, address: int) -> int:
        """Return a thread's current execution context (up to 2.4 the thread)."""
        offset = self._offsets.th_ec
        return address if offset is None else self._values.u64(address + offset)

    def has_stack(self, address: int) -> bool:
        """Return whether a thread has a VM stack, so that it has started and not ended.

        True if it cannot be read.
        """
        try:
            ec = self.ec_of(address)
            return self._values.u64(ec + self._offsets.ec_vm_stack) != 0
        except UnreadableMemory:
            return True

    def _fiber(self, ec: int) -> int:
        offset = self._offsets.ec_fiber
        return self._values.u64(ec + offset) if offset is not None and ec else 0

    def _name(self, address: int) -> str:
        offset = self._offsets.th_name
        if offset is None:
            return ""
        value = self._values.u64(address + offset)
        return self._values.string(value, 256) or ""

    def state(
        self, status: int, address: int, ec: int, running: int | None
    ) -> ThreadState:
        """Return the state for a status byte and the running thread (None: unknown).

        A runnable thread that does not hold the GVL waits for it.
        """
        state = _STATES.get(status & 3, ThreadState.UNKNOWN)
        if state is not ThreadState.RUNNING or running is None:
            return state
        ours = ec if self._has_running_ec else address
        return state if running == ours else ThreadState.WAITING
