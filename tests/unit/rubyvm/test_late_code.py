"""Frames of a stack whose code may be newer than the stack."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from rbtrace_py.model.stack_walk import WalkedStack
from rbtrace_py.rubyvm.late_code import NOT_NAMED, LateCode
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.vm import RubyVM

OLD, NEW, FUNCTION = 0x1000, 0x2000, 0x3000
COLLECTING, MARKING = 1, 2
"""Bits of the number of collections, as the kernel gives it."""


def walked(collection: int, *code: int) -> WalkedStack:
    words = array("Q")
    for address in code:
        is_function = address == FUNCTION
        words.extend((0, 0, address, 0) if is_function else (address, 8, 0, 0))
    return WalkedStack(
        key=b"",
        time_ns=0,
        pid=1,
        tid=1,
        thread=0,
        fiber=0,
        frames=memoryview(words),
        collecting=0,
        is_cut=False,
        weight=1,
        off_cpu=None,
        collection=collection,
    )


def not_named(stacks: list[WalkedStack]) -> list[list[int]]:
    """Places of the frames that are not to be named, of each stack."""
    found = []
    for stack in stacks:
        assert stack.frames is not None
        iseqs = stack.frames.tolist()[::4]
        found.append([at for at, iseq in enumerate(iseqs) if iseq == NOT_NAMED])
    return found


def late(
    stack: WalkedStack, now: int, *fresh: int, is_old: bool = False
) -> list[list[int]]:
    code = LateCode()
    return not_named(code.without([stack], [(one, is_old) for one in fresh], now))


@pytest.mark.parametrize("fresh", [NEW, FUNCTION])
def test_code_read_a_collection_later_is_unresolved(fresh: int) -> None:
    stack = walked(5 << 2, fresh, OLD, fresh)
    assert late(stack, 5 << 2, fresh) == []
    assert late(stack, 6 << 2, fresh) == [[0, 2]]
    assert late(stack, 6 << 2) == []


def test_a_stack_from_a_marking_collection_is_older_than_code_that_survives() -> None:
    stack = walked(5 << 2 | MARKING | COLLECTING, NEW)
    assert late(stack, 5 << 2 | MARKING, NEW) == []
    assert late(stack, 5 << 2, NEW) == [[0]]


def test_a_running_collection_may_be_about_to_move_code() -> None:
    assert late(walked(5 << 2 | COLLECTING, NEW), 5 << 2, NEW) == [[0]]
    assert late(walked(5 << 2, NEW), 5 << 2 | COLLECTING, NEW) == []


def test_code_that_survived_a_collection_existed_before_it() -> None:
    assert late(walked(5 << 2, NEW), 6 << 2, NEW, is_old=True) == []
    assert late(walked(5 << 2, NEW), 6 << 2 | MARKING, NEW, is_old=True) == []
    assert late(walked(4 << 2, NEW), 6 << 2, NEW, is_old=True) == [[0]]


def test_a_frame_is_reported_as_late_once() -> None:
    code, stack = LateCode(), walked(5 << 2, NEW, OLD)
    (found,) = code.without([stack], [(NEW, False)], 6 << 2)
    assert code.without([found], [], 6 << 2) == []
    # Naming it again has read the other frame's code, too.
    assert not_named(code.without([found], [(OLD, False)], 6 << 2)) == [[0, 1]]


def test_code_that_was_known_stays_so() -> None:
    code = LateCode()
    assert code.without([], [(NEW, False)], 6 << 2) == []
    assert code.without([walked(6 << 2, NEW)], [], 9 << 2) == []


def test_too_much_to_know_counts_as_new() -> None:
    code = LateCode()
    code.without([], [(8 * one, False) for one in range(1, 1 << 17)], 5 << 2)
    assert not_named(code.without([walked(5 << 2, NEW)], [], 6 << 2)) == [[0]]


class Pointers:
    """Memory in which each word is a pointer."""

    def read(self, address: int, size: int) -> bytes:
        return (0x10000).to_bytes(8, "little") * (size // 8)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(address, size) for address, size in ranges]


def test_collections_of_several_object_spaces_are_unknown() -> None:
    """One object space per ractor: collections of one do not count for the others."""
    first = table_for("4.1.0")
    assert first.later is not None
    for table, is_known in ((first, True), (first.later, False)):
        vm = RubyVM(Pointers(), layout_from(table, "4.1.0"), 0x10000)
        assert bool(vm.collection()) == bool(vm._collections()) == is_known
