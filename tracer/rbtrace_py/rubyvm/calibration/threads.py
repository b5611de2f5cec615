"""Where threads, fibers, ractors and the VM keep what a walker asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rbtrace_py.rubyvm.calibration.given import (
    Found,
    Given,
    View,
    failed,
    offset_where,
    sure,
)
from rbtrace_py.rubyvm.calibration.objects import Strings

_SLOT = 56
"""Bytes of a T_DATA object in which the pointer to its structure is."""
_HEAD = 80
_THREAD = 1024
_FIBER = 1024
_VM = 4096
_RACTOR = 2048
_MOST_STACK_WORDS = 1 << 24

RUNNER = -1
"""The thread that runs while the others sleep; the script gives it last."""
DEEP = 1
"""The thread that is in the frames of known methods."""
IN_FIBERS = 2


@dataclass(frozen=True, slots=True)
class Context:
    """An execution context: of the thread, and where its stack is."""

    address: int
    stack: int
    end: int
    cfp: int


@dataclass(slots=True)
class Threads:
    """What was found: structures by address, and the offsets in them."""

    addresses: list[int]
    contexts: list[Context]
    found: Found
    has_ractors: bool = False
    native_id_is_tid: bool = False


class ThreadSearch:
    """Finds the fields of threads in the memory of the script."""

    def __init__(self, view: View, given: Given, strings: Strings, vm: int) -> None:
        self.view = view
        self.given = given
        self.strings = strings
        self.vm = vm
        self.found: Found = {}

    def run(self, inner_tids: Sequence[int]) -> Threads:
        """Find all; raises UnknownRuby. ``inner_tids`` are those of all threads."""
        values = self.given.named("thread_")
        self.threads, self.found["th_self"] = self.structures(values, "thread")
        self.contexts = self._contexts()
        self._thread_fields()
        self._fibers()
        is_tid = self._native_ids(inner_tids)
        has_ractors = "ractor" in self.given.values
        if has_ractors:
            self._ractors()
        else:
            self._old_vm()
        return Threads(self.threads, self.contexts, self.found, has_ractors, is_tid)

    def structures(self, values: Sequence[int], what: str) -> tuple[list[int], int]:
        """The structures behind T_DATA objects, which point back, and where they do."""
        for data in range(16, _SLOT, 8):
            inside = [self.view.word(value + data) for value in values]
            back = offset_where(
                _HEAD, 8, inside, lambda i, at: self.view.word(at) == values[i]
            )
            if back is not None:
                return inside, back
        raise failed(f"the structure of a {what} was not found")

    def _contexts(self) -> list[Context]:
        """Execution contexts: in the thread itself (up to 2.4), or pointed to."""
        for offset in range(0, 256, 8):
            for inner in range(0, 64, 8):
                found = [
                    self._context(self.view.word(th + offset), inner)
                    for th in self.threads
                ]
                contexts = [context for context in found if context is not None]
                if len(contexts) == len(self.threads):
                    self.found["th_ec"] = offset
                    self._stack_found(inner)
                    return contexts
        for inner in range(0, 512, 8):
            found = [self._context(th, inner) for th in self.threads]
            contexts = [context for context in found if context is not None]
            if len(contexts) == len(self.threads):
                self._stack_found(inner)
                return contexts
        raise failed("the threads' stacks were not found")

    def _stack_found(self, inner: int) -> None:
        names = ("ec_vm_stack", "ec_vm_stack_size", "ec_cfp")
        self.found.update(zip(names, (inner, inner + 8, inner + 16), strict=True))

    def _context(self, address: int, inner: int) -> Context | None:
        """{stack, its size in words, control frame}, if they stand there."""
        words = self.view.words(address + inner, 3) if address else ()
        if len(words) != 3:
            return None
        stack, size, cfp = words
        end = stack + 8 * size
        fits = 1000 <= size <= _MOST_STACK_WORDS and stack < cfp < end
        if not fits or (stack | cfp) % 8 or not self.view.read(cfp, end - cfp):
            return None
        return Context(address, stack, end, cfp)

    def _thread_fields(self) -> None:
        threads, found = self.threads, self.found
        ecs = [context.address for context in self.contexts]
        if "th_ec" in found:
            found["ec_thread"] = sure(
                self._holds(ecs, 512, threads), "the thread of a context"
            )
        found["th_vm"] = sure(
            self._holds(threads, 256, [self.vm] * len(threads)), "the VM of a thread"
        )
        names = [f"rbtrace-{i}".encode() for i in range(len(threads))]
        name = offset_where(
            _THREAD,
            8,
            threads,
            lambda i, at: self.strings.is_text(self.view.word(at), names[i]),
        )
        if name is not None:
            found["th_name"] = name
        states = self.given.states
        found["th_status"] = sure(
            offset_where(
                _THREAD,
                1,
                threads,
                lambda i, at: (self.view.read(at, 1) or b"\xff")[0] & 3 == states[i],
            ),
            "the status of a thread",
        )

    def _holds(
        self, places: Sequence[int], size: int, wanted: Sequence[int]
    ) -> int | None:
        """The lowest offset at which each place holds what is wanted of it."""
        return offset_where(
            size, 8, places, lambda i, at: self.view.word(at) == wanted[i]
        )

    def _fibers(self) -> None:
        found, given = self.found, self.given
        names = [name for name in given.values if name.startswith("fiber_")]
        fibers, _ = self.structures([given.values[n] for n in names], "fiber")
        by_name = dict(zip(names, fibers, strict=True))
        first, second = by_name["fiber_first"], by_name["fiber_second"]
        context = self.contexts[IN_FIBERS].address
        inside = context - second
        if "th_ec" in found and 0 < inside < _FIBER:
            found["fiber_ec"] = inside
            found["ec_fiber"] = sure(
                self._holds([context], 256, [second]), "the fiber of a context"
            )
        # The second was resumed by the first, and that by the thread's own.
        found["fiber_prev"] = sure(
            offset_where(_FIBER, 8, [second], self._is(first)), "who resumed a fiber"
        )
        root = self.view.word(first + found["fiber_prev"])
        found["th_root_fiber"] = sure(
            self._holds([self.threads[IN_FIBERS]], _THREAD, [root]),
            "the root fiber of a thread",
        )
        states = [_FIBER_STATES[name.split("_")[1]] for name in names]
        found["fiber_status"] = sure(
            offset_where(
                _FIBER,
                1,
                fibers,
                lambda i, at: (self.view.read(at, 1) or b"\xff")[0] & 3 == states[i],
            ),
            "the status of a fiber",
        )

    def _is(self, wanted: int) -> Callable[[int, int], bool]:
        return lambda _, at: self.view.word(at) == wanted

    def _native_ids(self, inner_tids: Sequence[int]) -> bool:
        """Is there a kernel thread id, not a pthread_t?"""
        view, tids, threads = self.view, self.given.tids, self.threads
        if not all(tids):
            self._pthreads(set(inner_tids))
            return False
        direct = offset_where(
            _THREAD, 4, threads, lambda i, at: view.u32(at) == tids[i]
        )
        if direct is not None:
            self.found["th_native_id"] = direct
            return True
        for offset in range(0, _THREAD, 8):
            natives = [view.word(th + offset) for th in threads]
            inner = offset_where(64, 4, natives, lambda i, at: view.u32(at) == tids[i])
            if inner is not None:
                self.found.update(th_native_thread=offset, nt_tid=inner)
                return True
        raise failed("the kernel's ids of threads were not found")

    def _pthreads(self, tids: set[int]) -> None:
        """Each thread's pthread_t: the C library keeps the kernel's id in there."""
        for offset in range(0, 256, 8):
            natives = [self.view.word(th + offset) for th in self.threads]
            if len(set(natives)) != len(natives):
                continue
            inner = offset_where(
                0x400, 4, natives, lambda _, at: self.view.u32(at) in tids
            )
            if inner is not None:
                self.found["th_native_id"] = offset
                return
        raise failed("the native ids of threads were not found")

    def _ractors(self) -> None:
        """3.0 and later: the VM has ractors, and these have threads."""
        found, main = self.found, self.threads[0]
        found["th_ractor"], ractor = self._ractor()
        vm = [self.vm]
        found["vm_main_ractor"] = sure(self._holds(vm, _VM, [ractor]), "main ractor")
        found["vm_main_thread"] = sure(self._holds(vm, _VM, [main]), "main thread")
        node = self._list_of(self.vm, _VM, [ractor], _RACTOR)
        found["vm_ractors"], found["ractor_list_node"] = node
        node = self._list_of(ractor, _RACTOR, self.threads, _THREAD)
        found["ractor_threads"], found["th_list_node"] = node
        runner = self.contexts[RUNNER].address
        found["ractor_running_ec"] = sure(
            self._holds([ractor], _RACTOR, [runner]), "who runs in a ractor"
        )
        found["ractor_main_thread"] = self._beyond(
            "ractor_running_ec", ractor, main, "the main thread of a ractor"
        )

    def _beyond(self, name: str, owner: int, wanted: int, what: str) -> int:
        """Where ``owner`` holds ``wanted`` after the member ``name``, found before.

        Locks and queues, which stand first, hold threads as well.
        """
        begin = self.found[name]
        offset = self._holds([owner + begin], _RACTOR - begin, [wanted])
        return begin + sure(offset, what)

    def _ractor(self) -> tuple[int, int]:
        """Where a thread points to its ractor, and the ractor."""
        value = self.given.values["ractor"]
        inside = [word for _, word in self.view.pointers(value + 16, 6)]
        for ractor in inside:
            offset = self._holds(self.threads, 128, [ractor] * len(self.threads))
            if offset is not None:
                return offset, ractor
        raise failed("the ractor of a thread was not found")

    def _old_vm(self) -> None:
        """Up to 2.7: the VM has the threads."""
        found = self.found
        main, runner = self.threads[0], self.threads[RUNNER]
        found["vm_main_thread"] = sure(
            self._holds([self.vm], _VM, [main]), "the main thread"
        )
        found["vm_running_thread"] = self._beyond(
            "vm_main_thread", self.vm, runner, "the running thread"
        )
        node = self._list_of(self.vm, _VM, self.threads, _THREAD)
        found["vm_threads"], found["th_list_node"] = node

    def _list_of(
        self, owner: int, owner_size: int, members: Sequence[int], member_size: int
    ) -> tuple[int, int]:
        """A list_head in ``owner`` on which all ``members`` are: its place, the nodes'.

        struct list_head {next, prev}; a node points to the next node, or back.
        """
        for head, first in self.view.pointers(owner, owner_size // 8):
            for member in members:
                node = first - member
                nodes = {one + node for one in members}
                if 0 <= node < member_size and self._walk(owner + head) == nodes:
                    return head, node
        raise failed("the list of threads, or of ractors, was not found")

    def _walk(self, head: int) -> set[int] | None:
        """The nodes of a list, None if it does not come back to its head."""
        nodes: set[int] = set()
        at = self.view.word(head)
        while at != head:
            if at in nodes or len(nodes) > 1000 or not at:
                return None
            nodes.add(at)
            at = self.view.word(at)
        return nodes


_FIBER_STATES = {
    "created": 0, "first": 2, "second": 1, "suspended": 2, "ended": 3,
}  # fmt: skip
"""enum fiber_status (cont.c); the first has resumed the second, and waits."""
