"""Frames of ZJIT, of stacks that the kernel walked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.model.stack_walk import WalkedStack
from rbtrace_py.rubyvm.jit_frames import UNKNOWN_CODE
from rbtrace_py.rubyvm.vm import RubyVM
from recorded_memory import ReplayMemory
from replays import replay

PC_IN_JIT_FRAME, C_FUNCTION, NOT_READ = 1, 0, 8


class Ending:
    """A recording that a program's end makes unreadable; notes what is gathered."""

    def __init__(self, inner: ReplayMemory) -> None:
        self._inner = inner
        self.has_ended = False
        self.gathered: list[int] = []

    def read(self, address: int, size: int) -> bytes:
        if self.has_ended:
            raise NoSuchTarget("it has ended")
        return self._inner.read(address, size)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.gathered += [address for address, _ in ranges]
        return [self.read(address, size) for address, size in ranges]


def walked(*firsts: int) -> WalkedStack:
    words = array("Q")
    for first in firsts:
        words.extend((first, PC_IN_JIT_FRAME, 0, 0))
    return WalkedStack(
        key=b"", time_ns=0, pid=1, tid=1, thread=0, fiber=0, frames=memoryview(words),
        collecting=0, is_cut=False, weight=1, off_cpu=None,
    )  # fmt: skip


def test_code_of_jit_frames() -> None:
    """A C function has no JITFrame; a JITFrame that cannot be read is unknown code.

    Code that was read before stays known after the process has ended.
    """
    image = replay("4.1.0dev-zjit")
    memory = Ending(image.memory)
    vm = RubyVM(memory, image.layout, image.vm, image.symbols, zjit=image.zjit)
    vm.sample_all(one for one in vm.threads() if one.name in image.stacks)
    known = next(iter(vm._unwinder._jit_frames._known))
    pc, iseq = vm._jit_frames.code(known)
    stack, missing = walked(C_FUNCTION, known, NOT_READ), 0x7000_0000_0000
    memory.gathered.clear()

    def code(stack: WalkedStack) -> list[tuple[int, int]]:
        (found,) = vm.with_code([stack])
        assert found.frames is not None
        words = found.frames.tolist()
        return list(zip(words[1::4], words[::4], strict=True))

    assert pc
    assert iseq
    assert code(stack) == [(0, 0), (pc, iseq), UNKNOWN_CODE]
    assert memory.gathered == [known]
    assert code(walked(missing, known)) == [UNKNOWN_CODE, (pc, iseq)]
    memory.has_ended = True
    assert code(stack) == [(0, 0), (pc, iseq), UNKNOWN_CODE]
