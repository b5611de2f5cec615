"""Checks of a layout against a VM in memory.

The VM's structures refer to one another in many ways: threads to the VM, an execution
context to its thread, a fiber to its context. ``Object`` has a known name, and the main
thread's stack can be walked. A wrong offset breaks one of these relations, or makes the
walk reject what it reads (``iseqs.py``, ``names.py``, ``lines.py``). Memory may change
meanwhile, so a failed check is repeated before it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.model.stacks import CHANGED, SampleFlags, ThreadState
from rbtrace_py.rubyvm.iseqs import Iseqs
from rbtrace_py.rubyvm.layout import Layout, Offsets, ThreadList
from rbtrace_py.rubyvm.names import Names
from rbtrace_py.rubyvm.roots import KNOWN_IDS, is_pointer, read_word
from rbtrace_py.rubyvm.unwinder import LARGEST_STACK
from rbtrace_py.rubyvm.values import Values
from rbtrace_py.rubyvm.vm import RubyVM

_TRIES = 5
_REST = 0.003
"""Seconds before each of the last two attempts."""
_PAGE = 4096
_LONGEST_LIST = 4096
_MOST_FIBERS = 64
_RESUMED, _SUSPENDED = 1, 2
"""FIBER_RESUMED and FIBER_SUSPENDED (enum fiber_status, cont.c): the status of the
fiber that a thread runs, and of a fiber that resumed another."""
_READS = 20
"""Maximum number of reads of changing fields until one is consistent."""
_FIBER_BITS = 1 << 8
"""The word with ``rb_fiber_t.status`` has two bits of it and a few flags."""
_FLAG_BITS = 1 << 24
"""``rb_objspace_t.flags`` has fewer bits than that."""
_WALKED = ("cfp_", "iseq_", "body_", "line_", "me_", "def_", "call_", "th_status",
           "jit_frame_")  # fmt: skip
"""Prefixes of fields that only a stack walk uses."""


class _Wrong(Exception):
    """A statement of the layout is false."""


class _Doubtful(_Wrong):
    """A statement may be false: the program itself may cause one strange frame."""


class _Unmade(_Wrong):
    """A statement cannot be checked yet: the VM has not filled a field."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The addresses at which checks begin.

    Attributes:
        vm: Address of ``rb_vm_t``.
        symbols: Address of the global symbol table, or None if not found.
        object_class: ``rb_cObject``, or None if unknown.
        zjit: Address of the word that is not 0 while ZJIT is on; None: this Ruby has no
            ZJIT.
    """

    vm: int
    symbols: int | None = None
    object_class: int | None = None
    zjit: int | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A contradiction between memory and a layout.

    Attributes:
        fields: Fields that the failed check used, by their names in ``Offsets``.
        stage: Number of the failed check. All earlier checks passed.
        is_unmade: A structure is not complete yet, as in a process that has just
            started, whose main thread may not run Ruby code yet.
        is_unreadable: Memory is missing, as in a truncated core file.
        is_doubt: A reason to prefer another layout, not to refuse this one.
        check: Name of the failed check.
    """

    reason: str
    fields: frozenset[str]
    stage: int
    is_unmade: bool = False
    is_unreadable: bool = False
    is_doubt: bool = False
    check: str = ""


def contradiction(memory: Memory, layout: Layout, roots: Roots) -> Contradiction | None:
    """Return the contradiction between memory and ``layout``, or None.

    A running target is inconsistent for a moment, or for long if the kernel deschedules
    it at that point.
    """
    found = None
    for attempt in range(_TRIES):
        time.sleep(_REST if attempt >= _TRIES - 2 else 0)
        found = _Checks(memory, layout, roots).run()
        if found is None:
            break
    return found


class _Checks:
    """The checks; ``used`` contains the fields that the current check has used."""

    def __init__(self, memory: Memory, layout: Layout, roots: Roots) -> None:
        self.memory = memory
        self.layout = layout
        self.roots = roots
        self.used: set[str] = set()
        self.main = self.ec = 0

    def run(self) -> Contradiction | None:
        """Run the checks in order; return the first contradiction."""
        checks: tuple[Callable[[], None], ...] = (
            self.sizes,
            self.main_thread,
            self.lists,
            self.context,
            self.fibers,
            self.collector,
            self.symbols,
            self.classes,
            self.stack,
        )
        for stage, check in enumerate(checks):
            self.used = set()
            try:
                check()
            except _Wrong as wrong:
                return Contradiction(
                    str(wrong),
                    frozenset(self.used),
                    stage,
                    is_unmade=isinstance(wrong, _Unmade),
                    is_doubt=isinstance(wrong, _Doubtful),
                    check=check.__name__,
                )
            except UnreadableMemory as error:
                reason = f"it points to missing memory ({error})"
                return Contradiction(
                    reason,
                    frozenset(self.used),
                    stage,
                    is_unreadable=True,
                    check=check.__name__,
                )
        return None

    # ---------------------------------------------------------------- reading

    def has(self, *names: str) -> bool:
        """Return whether the layout contains these fields."""
        return all(getattr(self.layout.offsets, name) is not None for name in names)

    def place(self, structure: int, name: str) -> int:
        """Return the address of a member; raises _Wrong if its offset is missing."""
        self.used.add(name)
        offset: int | None = getattr(self.layout.offsets, name)
        if offset is None:
            raise _Wrong(f"the offset {name} is missing")
        return structure + offset

    def word(self, address: int) -> int:
        if 0 <= address < _PAGE:
            raise _Unmade("a pointer is null")
        if not is_pointer(address & -8):
            raise _Wrong(f"{address:#x} is not an address")
        return read_word(self.memory, address)

    def at(self, structure: int, name: str) -> int:
        """Return the word in a member."""
        return self.word(self.place(structure, name))

    def need(self, what: bool, otherwise: str) -> None:
        if not what:
            raise _Wrong(otherwise)

    def same(self, found: int, wanted: int, otherwise: str) -> None:
        if found != wanted:
            raise _Wrong(otherwise) if found else _Unmade(otherwise)

    # ----------------------------------------------------------------- checks

    def sizes(self) -> None:
        """Structures that are read as arrays must be large enough for their members."""
        offsets = self.layout.offsets
        for size, prefix, unit in (("cfp_size", "cfp_", 8), ("line_size", "line_", 4)):
            names = [name for name in Offsets.__slots__ if name.startswith(prefix)]
            known = [getattr(offsets, name) or 0 for name in names if name != size]
            whole = getattr(offsets, size)
            self.used = set(names)
            is_array = whole > max(known) and not whole % unit
            aligned = not any(one % unit for one in known)
            self.need(is_array and aligned, f"{size} is not a valid size")

    def main_thread(self) -> None:
        vm = self.roots.vm
        self.main = self.at(vm, "vm_main_thread")
        self.same(self.at(self.main, "th_vm"), vm, "the main thread has another VM")
        if self.has("th_ec"):
            self.ec = self.at(self.main, "th_ec")
            if not self.ec:
                raise _Unmade("the main thread has no execution context")
            self.need(is_pointer(self.ec), "an execution context is at no address")
        else:
            self.ec = self.main
        if self.has("ec_thread"):
            owner = self.at(self.ec, "ec_thread")
            self.same(owner, self.main, "the context of a thread is another's")

    def lists(self) -> None:
        vm, main = self.roots.vm, self.main
        if not self.layout.traits.has_ractors:
            if self.layout.traits.thread_list is ThreadList.LIST:
                node = self.place(main, "th_list_node")
                self._on_list(self.place(vm, "vm_threads"), node, "the main thread")
            return
        ractor = self.at(vm, "vm_main_ractor")
        own = self.at(main, "th_ractor")
        self.same(own, ractor, "the main thread is in another ractor")
        node = self.place(main, "th_list_node")
        self._on_list(self.place(ractor, "ractor_threads"), node, "the main thread")
        node = self.place(ractor, "ractor_list_node")
        self._on_list(self.place(vm, "vm_ractors"), node, "the main ractor")
        running = self.at(ractor, "ractor_running_ec")
        if running:
            thread = self.at(running, "ec_thread")
            own = self.at(thread, "th_ractor")
            self.need(own == ractor, "another ractor's thread runs")

    def _on_list(self, head: int, wanted: int, what: str) -> None:
        """Check a struct list_head {next, prev}: each node must point back.

        The oldest items come first, so few nodes are read.
        """
        before, at = head, self.word(head)
        for _ in range(_LONGEST_LIST):
            if at == head or self.word(at + 8) != before:
                break
            if at == wanted:
                return
            before, at = at, self.word(at)
        raise _Wrong(f"{what} is on no list")

    def context(self) -> None:
        stack = self.at(self.ec, "ec_vm_stack")
        size = self.at(self.ec, "ec_vm_stack_size")
        cfp = self.at(self.ec, "ec_cfp")
        if not (stack and size and cfp):
            raise _Unmade("the main thread has no stack")
        end = stack + 8 * size
        fits = 0 < 8 * size <= LARGEST_STACK and stack < cfp <= end
        self.need(fits, "a frame is not on its stack")
        self.used.add("cfp_size")
        whole = (end - cfp) % self.layout.offsets.cfp_size == 0
        self.need(whole, "the frames do not fill their part of the stack")

    def fibers(self) -> None:
        """A thread's context is in its fiber, which is resumed. The fibers that resumed
        it are suspended (fiber_store of cont.c)."""
        if not self.has("th_ec", "ec_thread", "ec_fiber", "fiber_ec", "fiber_status"):
            return
        for _ in range(_READS - 1):
            try:
                self._check_fibers()
            except _Wrong:
                self.ec = self.at(self.main, "th_ec")  # it may have changed
            else:
                return
        self._check_fibers()

    def _check_fibers(self) -> None:
        fiber = self.at(self.ec, "ec_fiber")
        if not fiber:
            return
        own = self.place(fiber, "fiber_ec")
        self.need(own == self.ec, "a fiber has another context than its thread")
        for number in range(_MOST_FIBERS):
            if not fiber:
                return
            thread = self.at(self.place(fiber, "fiber_ec"), "ec_thread")
            self.need(thread == self.main, "a fiber is another thread's")
            place = self.place(fiber, "fiber_status")
            status = int.from_bytes(self.memory.read(place, 4), "little")
            expected = _SUSPENDED if number else _RESUMED
            is_right = status & 3 == expected and status < _FIBER_BITS
            self.need(is_right, "a fiber that runs is not resumed")
            fiber = self.at(fiber, "fiber_prev") if self.has("fiber_prev") else 0

    def collector(self) -> None:
        if not self.has("objspace_flags", "objspace_gc_bit"):
            return
        if self.has("ractor_objspace", "vm_main_ractor"):
            ractor = self.at(self.roots.vm, "vm_main_ractor")
            objspace = self.at(ractor, "ractor_objspace")
        elif self.has("vm_objspace"):
            objspace = self.at(self.roots.vm, "vm_objspace")
        else:
            return
        place = self.place(objspace, "objspace_flags")
        self.need(is_pointer(objspace), "there is no object space")
        flags = int.from_bytes(self.memory.read(place, 4), "little")
        self.need(flags < _FLAG_BITS, "the collector's flags are invalid")

    def symbols(self) -> None:
        if self.roots.symbols is None:
            return
        self.used |= {"symbols_ids", "symbols_last_id"}
        values = self._values()
        for number, name in KNOWN_IDS.items():
            is_right = values.id_name(number) == name.decode("ascii")
            self.need(is_right, "the table of symbols has other names")

    def classes(self) -> None:
        """``Object`` and its singleton class must have their names."""
        known = self.roots.object_class
        by_symbols = self.has("ext_ivars") and self.roots.symbols is None
        if not known or by_symbols:
            return
        self.used |= {name for name in Offsets.__slots__ if _is_of_class(name)}
        names = Names(self._values(), Iseqs(self._values()))
        for klass, name in ((known, "Object#"), (self.word(known + 8), "Object.")):
            is_right = names.class_prefix(klass) == (name, True)
            self.need(is_right, "the class Object has another name")

    def stack(self) -> None:
        """The main thread's stack must be readable and consistent."""
        self.used |= {name for name in Offsets.__slots__ if name.startswith(_WALKED)}
        roots = self.roots
        vm = RubyVM(
            *(self.memory, self.layout, roots.vm, roots.symbols), zjit=roots.zjit
        )
        # A program that switches fibers may have another stack a moment later.
        samples = (vm.sample(_Thread(self.main)) for _ in range(_READS))
        walked = next((one for one in samples if one is not None), None)
        if walked is None:
            raise _Wrong("the main thread's stack cannot be read")
        for doubt in vm.values.consistency.doubts():
            raise _Wrong(f"{doubt} in the main thread's stack")
        if SampleFlags.TRIMMED in walked.flags:
            if walked.stack.frames[0] is CHANGED:
                raise _without_frames(vm.runs_no_code(_Thread(self.main)))
            # The newest frames of a running thread change while they are read.
            if walked.state is not ThreadState.RUNNING:
                raise _Doubtful("the main thread's stack has frames of no kind")

    def _values(self) -> Values:
        return Values(self.memory, self.layout, self.roots.symbols)


@dataclass(frozen=True, slots=True)
class _Thread:
    address: int


def _without_frames(is_understood: bool) -> _Wrong:
    """Return the error for a stack without visible frames.

    Ruby creates its classes and parses the program in hidden frames only. Otherwise the
    stack is invalid.
    """
    if is_understood:
        return _Unmade("the main thread runs no Ruby code yet")
    return _Wrong("the main thread's stack has no frames")


def _is_of_class(name: str) -> bool:
    return name.startswith(("class_", "ext_"))
