"""Possible callers of a frame, by the caller's current call instruction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from copy import copy

import pytest

from processes import Target, comes_true
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.rubyvm.frames import FrameNode
from rbtrace_py.rubyvm.iseqs import IseqKind
from rbtrace_py.rubyvm.vm import RubyVM
from rubies import EACH, Running, command, innermost

pytestmark = pytest.mark.usefixtures("root")

BLOCKS = r"""
def outer
  [1].each do
    1.times { tap { $stdout.write("ready\n"); $stdout.flush; nil while true } }
  end
end
outer
"""


class Flawed(ProcessMemory):
    """Memory of which ``size`` bytes at ``flaw`` are zeros; none while it is 0."""

    flaw, size = 0, 16

    def read(self, address: int, size: int) -> bytes:
        found = super().read(address, size)
        start = max(self.flaw - address, 0)
        end = min(self.flaw + self.size - address, size)
        return (
            found if start >= end else found[:start] + bytes(end - start) + found[end:]
        )


@pytest.fixture(params=EACH)
def blocks(request: pytest.FixtureRequest) -> Iterator[tuple[RubyVM, Flawed]]:
    """A thread that is busy in blocks within blocks."""
    with closing(Target(*command(request.param, BLOCKS))) as target:
        running = Running(target, innermost(target.pid))
        memory = Flawed(running.pid)
        yield running.vm(memory), memory


def nodes(vm: RubyVM) -> tuple[list[FrameNode], tuple[int, ...]]:
    """Return the nodes of the current stack, oldest first, and the uncertain ones."""
    reading = vm._read(vm._track(vm.threads()[0].address), None)
    assert reading is not None
    return reading.nodes, reading.unsure


def calls(found: list[FrameNode]) -> list[tuple[FrameNode, FrameNode]]:
    """Yield Ruby frames in a call with a block, each with the block's frame."""
    pairs = []
    for index, block in enumerate(found):
        if block.iseq is not None and block.iseq.kind == IseqKind.BLOCK:
            parent = block.iseq.parent
            outer = [
                one for one in found[:index] if one.iseq and one.iseq.address == parent
            ]
            pairs.append((outer[-1], block))
    return pairs


def test_a_block_at_an_address_behind_the_call_data(
    blocks: tuple[RubyVM, Flawed],
) -> None:
    """The data behind an iseq's calls may look like a call, as their number is unknown.

    Once in some 50 runs, all stacks of a process in one block were doubtful.
    """
    vm, _ = blocks
    sites = vm._tree.calls
    found, unsure = nodes(vm)
    pairs = calls(found)
    assert len(pairs) == 3
    assert not unsure
    for outer, block in pairs:
        assert outer.iseq is not None
        assert block.iseq is not None
        before = sites.before(outer.iseq, outer.pc)
        assert before.block == block.iseq.address
        data, size = outer.iseq.call_data, sites._size
        outer.iseq.call_data = start = min(data, block.iseq.address)
        room = (max(data, block.iseq.address) - start) // size + 1
        outer.iseq.end = outer.iseq.begin + 8 * room
        sites.clear()
        assert sites.before(outer.iseq, outer.pc) == before


def test_an_unsure_frame_is_looked_at_again(blocks: tuple[RubyVM, Flawed]) -> None:
    """One wrong reading of a call does not flag each later stack through it."""
    vm, memory = blocks
    thread = vm.threads()[0]
    found, _ = nodes(vm)
    outer = calls(found)[1][0]
    vm._tree._start()
    vm._tree.calls.clear()
    memory.flaw = outer.pc - 16
    walked = vm.sample(thread)
    assert walked is not None
    assert nodes(vm)[1]
    memory.flaw = 0
    assert nodes(vm)[1]  # the data read before is kept
    generation = vm._tree.generation
    walked = vm.sample(thread)
    assert walked is not None
    assert not walked.flags
    # A thread that has moved on was believed without another check.
    assert comes_true(lambda: vm.sample(thread) and not nodes(vm)[1])
    assert vm._tree.generation == generation
    assert not vm._tree._unsure


def test_another_iseq_at_the_address_of_an_outer_one(
    blocks: tuple[RubyVM, Flawed],
) -> None:
    """A block has its own method's name, not the name known at the method's address.

    Six samples had the name of one method with the path of another.
    """
    vm, _ = blocks
    iseqs = vm._tree._iseqs
    block = calls(nodes(vm)[0])[0][1].iseq
    assert block is not None
    outer, shown = iseqs.get(block.parent), iseqs.shown_for(block)
    assert outer is not None
    stale = copy(block)
    stale.address = outer.address
    iseqs._known = {outer.address: stale}
    replaced = vm._tree.replaced
    found = iseqs.get(block.address)
    assert found is not None
    named, level = iseqs.shown_for(found)
    assert (named.label, level) == (shown[0].label, shown[1])
    assert vm._tree.replaced == replaced + 1
    generation = vm._tree.generation
    vm.revalidate()
    assert vm._tree.generation == generation + 1
    vm.revalidate()
    assert vm._tree.generation == generation + 1
