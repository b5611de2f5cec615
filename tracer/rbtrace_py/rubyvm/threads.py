"""The threads of a VM: where they are, who they are, what they are doing."""

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
"""``RTypedData.data``: what a Thread object of 2.1 points to."""

_LIST_HEAD_SIZE = 16
_LIST_PREVIOUS = 8
"""``struct list_head`` (ccan/list): next, and prev, which of a head is the last."""
_MARKED_RACTORS = 64
"""More ractors than these are looked at only now and then."""

_OWN_NATIVE = {(3, 3): 4, (4, 1): 8}
"""``has_dedicated_nt``, a bit behind the two of ``rb_thread_t.status``: by the version
since which it has this place. Since 4.1 ``main_thread`` comes before it."""

_STATES = {0: ThreadState.RUNNING, 1: ThreadState.SLEEPING, 2: ThreadState.SLEEPING}
"""enum rb_thread_status: runnable, stopped, stopped for ever; killed is left out."""


class VmThread(NamedTuple):
    """One thread as it was found; addresses are those of its structures.

    ``tid`` is the id the target's own namespace gives it, None where there is none
    or it cannot be told. ``ec`` is of the fiber it runs, which ``fiber`` is (0 where
    not known), ``running`` the address of the word that names its ractor's (or the
    VM's) running thread or EC. One that ``is_moving`` runs on whichever native thread
    is free (M:N threads, since 3.3), so its ``tid`` is of that moment.
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

    is_tid: whether the kernel has a thread of that id in the target, to tell a
    ``pthread_t`` that was understood from one that was not; None: not known
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
        """Return all threads of all ractors, the main one first.

        A list that changes while it is read may lack those that came or went.
        Raises UnreadableMemory if the VM itself is not where it should be, or has gone
        before one of its threads was read, as with an exec.
        """
        found: dict[int, VmThread] = {}
        address = 0
        for address, ractor, main, running in self._addresses():
            if address not in found and len(found) < MOST_THREADS:
                thread = self._thread(address, ractor, address == main, running)
                if thread is not None:
                    found[address] = thread
        if address and not found:
            raise UnreadableMemory("none of the threads is there")
        return sorted(found.values(), key=lambda thread: not thread.is_main)

    def _addresses(self) -> Iterator[tuple[int, int, int, int]]:
        """Address of each thread, number of its ractor, main thread, running word."""
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
        """Return places (address, size) whose bytes change when a thread joins.

        They are both ends of each list, as the VM adds at the end of it, and the
        object and the native thread of the last one, as its memory may be that of one
        that has ended. With them come the addresses of those last ones. Up to 2.1
        there are no such places.
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
        """Addresses of the heads of the lists of threads."""
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
        """Addresses of the ractors, the main one first."""
        offsets = self._offsets
        main = self._place(self._vm, offsets.vm_main_ractor)
        found = [self._values.u64(main)] if main else []
        if offsets.vm_ractors is not None and offsets.ractor_list_node is not None:
            head = self._vm + offsets.vm_ractors
            found += self._list(head, offsets.ractor_list_node, MOST_RACTORS)
        return [ractor for ractor in dict.fromkeys(found) if ractor > 4096]

    def _vm_threads(self, main: int) -> list[int]:
        """Threads of a VM without ractors."""
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
        """2.1: ``living_threads`` has the Thread objects as its keys."""
        for value, _ in self._values.st_table(table):
            if self._values.is_object(value):
                yield self._values.u64(value + _DATA_POINTER)

    def _list(self, head: int, node: int, most: int) -> Iterator[int]:
        """Walk a list_head (ccan/list): its nodes are within the structures."""
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
        """Return what ``tid`` is now, of threads of a Ruby that has native threads.

        Raises UnreadableMemory.
        """
        return self._native.tids(addresses)

    def bases(self, addresses: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield ``pthread_t``, address and context of each thread that has all."""
        for address in addresses:
            try:
                base, ec = self._native.base(address), self.ec_of(address)
            except UnreadableMemory:
                continue
            if base and ec:
                yield base, address, ec

    def ec_of(self, address: int) -> int:
        """Return the execution context a thread has now (up to 2.4 the thread)."""
        offset = self._offsets.th_ec
        return address if offset is None else self._values.u64(address + offset)

    def has_stack(self, address: int) -> bool:
        """Has it a VM stack? A thread that has not begun yet, or has ended, has none.

        True as well where it cannot be read.
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
        """Make a state of the status byte and of who runs (None: not known).

        A runnable thread that is not the one that holds the lock waits for it.
        """
        state = _STATES.get(status & 3, ThreadState.UNKNOWN)
        if state is not ThreadState.RUNNING or running is None:
            return state
        ours = ec if self._has_running_ec else address
        return state if running == ours else ThreadState.WAITING
