"""Whether a VM in memory is what a layout says: it points to itself in many ways.

The threads point to the VM, an execution context to its thread, a stack begins with
``<main>``. A wrong offset breaks one of these. What changes while it is read may as
well, so a check that fails is repeated before it counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.layout import Layout, ThreadList
from rbtrace_py.rubyvm.roots import is_pointer, read_word
from rbtrace_py.rubyvm.unwinder import LARGEST_STACK

_TRIES = 5
_PAGE = 4096
_LONGEST_LIST = 4096


class _Wrong(Exception):
    """What the layout says is not so."""


class _Unmade(_Wrong):
    """It is not so, but the place is empty, as it is before the VM has made it."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What contradicts a layout; ``is_unmade``: it is that something is not there."""

    reason: str
    is_unmade: bool = False


def complaint(memory: Memory, layout: Layout, vm: int) -> Complaint | None:
    """Return what contradicts the layout in the VM at ``vm``, None if nothing does."""
    found = None
    for _ in range(_TRIES):
        try:
            _Checks(memory, layout).vm(vm)
        except _Wrong as wrong:
            found = Complaint(str(wrong), isinstance(wrong, _Unmade))
        except UnreadableMemory as error:
            found = Complaint(f"it leads to memory that is not there ({error})")
        else:
            return None
    return found


class _Checks:
    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.memory = memory
        self.layout = layout
        self.offsets = layout.offsets

    def word(self, address: int) -> int:
        if 0 <= address < _PAGE:
            raise _Unmade("a pointer is null")
        if not is_pointer(address & -8):
            raise _Wrong(f"{address:#x} is no address")
        return read_word(self.memory, address)

    def at(self, structure: int, offset: int | None) -> int:
        """The word at ``offset``; raises _Wrong if that is not known."""
        if offset is None:
            raise _Wrong("an offset is missing")
        return self.word(structure + offset)

    def need(self, what: bool, otherwise: str) -> None:
        if not what:
            raise _Wrong(otherwise)

    def same(self, found: int, wanted: int, otherwise: str) -> None:
        if found != wanted:
            raise _Wrong(otherwise) if found else _Unmade(otherwise)

    def vm(self, vm: int) -> None:
        offsets = self.offsets
        if offsets.vm_main_thread is None:
            return
        main = self.at(vm, offsets.vm_main_thread)
        self.same(self.at(main, offsets.th_vm), vm, "the main thread has another VM")
        if self.layout.traits.has_ractors:
            ractor = self.at(vm, offsets.vm_main_ractor)
            own = self.at(main, offsets.th_ractor)
            self.same(own, ractor, "the main thread is in another ractor")
            self._list(ractor, offsets.ractor_threads, main)
            self._list_of_ractors(vm, ractor)
        elif self.layout.traits.thread_list is ThreadList.LIST:
            self._list(vm, offsets.vm_threads, main)
        self._context(main)

    def _list(self, owner: int, head: int | None, main: int) -> None:
        """Is the main thread on the list of threads?"""
        node = self.offsets.th_list_node
        if head is None or node is None:
            raise _Wrong("an offset is missing")
        self._on_list(owner + head, main + node, "the main thread is on no list")

    def _list_of_ractors(self, vm: int, ractor: int) -> None:
        head, node = self.offsets.vm_ractors, self.offsets.ractor_list_node
        if head is None or node is None:
            raise _Wrong("an offset is missing")
        self._on_list(vm + head, ractor + node, "the main ractor is on no list")

    def _on_list(self, head: int, wanted: int, otherwise: str) -> None:
        """struct list_head {next, prev}: each points back to where we came from.

        What was made first stands first, so that few are looked at.
        """
        before, at = head, self.word(head)
        for _ in range(_LONGEST_LIST):
            if at == head or self.word(at + 8) != before:
                break
            if at == wanted:
                return
            before, at = at, self.word(at)
        raise _Wrong(otherwise)

    def _context(self, thread: int) -> None:
        offsets = self.offsets
        context = thread if offsets.th_ec is None else self.at(thread, offsets.th_ec)
        if offsets.ec_thread is not None:
            owner = self.at(context, offsets.ec_thread)
            self.same(owner, thread, "the context of a thread is another's")
        stack = self.at(context, offsets.ec_vm_stack)
        size = self.at(context, offsets.ec_vm_stack_size)
        cfp = self.at(context, offsets.ec_cfp)
        if not (stack and size and cfp):
            raise _Unmade("the main thread has no stack")
        end = stack + 8 * size
        fits = 0 < 8 * size <= LARGEST_STACK and stack < cfp <= end
        self.need(fits, "a frame is not on its stack")
        whole = (end - cfp) % offsets.cfp_size == 0
        self.need(whole, "the frames do not fill their part of the stack")
