"""The walker on damaged memory: it neither crashes nor hangs, but raises our own
errors or returns no stack."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.rubyvm.vm import RubyVM
from recorded_memory import ReplayMemory
from replays import replay

IMAGES = 25_000 if os.environ.get("RBTRACE_SOAK") else 250
"""Number per Ruby. A soak tries 100,000 in total."""


class Damaged:
    """A recording with replaced words, and with random bytes at missing addresses.

    A hostile target might choose the new words: a pointer to another existing
    structure, a huge or small number, or the old word with one bit changed.
    """

    def __init__(self, inner: ReplayMemory, chance: random.Random, rate: float) -> None:
        self._inner = inner
        self._chance = chance
        self._rate = rate
        self._pointers = [0x1000]
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        assert 0 <= size <= 1 << 30
        chance = self._chance
        try:
            data = bytearray(self._inner.read(address, size))
        except UnreadableMemory:
            if size > 4096 or chance.random() > 0.5:
                raise
            data = bytearray(chance.randbytes(size))
        for place in range(0, size - 7, 8):
            if chance.random() < self._rate:
                data[place : place + 8] = self._word(data[place : place + 8])
        self._pointers.append(address)
        del self._pointers[:-50]
        return bytes(data)

    def _word(self, old: bytes) -> bytes:
        chance, value = self._chance, int.from_bytes(old, "little")
        values = [
            chance.choice(self._pointers) & (1 << 64) - 1,
            chance.getrandbits(64),
            chance.choice([0, 1, 8, 64, 4096, 1 << 20, (1 << 63) - 1, (1 << 64) - 1]),
            value ^ 1 << chance.randrange(64),
            value + 8 & (1 << 64) - 1,
        ]
        return chance.choice(values).to_bytes(8, "little")

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(address, size) for address, size in ranges]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["2.7", "3.1", "3.3", "3.4", "4.1.0dev-zjit"])
def test_damaged_images(name: str) -> None:
    image = replay(name)
    chance = random.Random(name)
    for _ in range(IMAGES):
        rate = chance.choice([0.0005, 0.002, 0.01, 0.1, 0.5])
        memory = Damaged(image.memory, chance, rate)
        try:
            roots = image.vm, image.symbols
            vm = RubyVM(memory, image.layout, *roots, zjit=image.zjit)
            threads = vm.threads()
            whole = [one for one in threads if one.name in image.stacks]
            for walked in vm.sample_all(whole[:3] + threads[:1]):
                if walked is not None:
                    assert all(
                        len(frame.name) < 20_000 for frame in walked.stack.frames
                    )
            vm.revalidate()
        except UnreadableMemory:
            pass
        assert memory.reads < 200_000


class MovedPointer:
    """A recording in which the word at ``place`` is ``by`` bytes further."""

    def __init__(self, inner: ReplayMemory) -> None:
        self._inner = inner
        self.place = self.by = 0

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(self._inner.read(address, size))
        at = self.place - address
        if 0 <= at <= size - 8:
            word = int.from_bytes(data[at : at + 8], "little") + self.by
            data[at : at + 8] = (word & (1 << 64) - 1).to_bytes(8, "little")
        return bytes(data)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(address, size) for address, size in ranges]


@pytest.mark.parametrize("by", [1, 4, 8, -(1 << 40), 1 << 40, 1 << 63])
@pytest.mark.parametrize("name", ["3.4", "4.1.0dev-zjit"])
def test_a_frame_pointer_that_becomes_wrong(name: str, by: int) -> None:
    """A stack that was read before has no sample while its frame pointer is wrong."""
    image, offsets = replay(name), replay(name).layout.offsets
    memory = MovedPointer(image.memory)
    vm = RubyVM(memory, image.layout, image.vm, image.symbols, zjit=image.zjit)
    one = next(thread for thread in vm.threads() if thread.name in image.stacks)
    assert vm.sample(one) is not None
    memory.place = vm.values.u64(one.address + (offsets.th_ec or 0)) + offsets.ec_cfp
    memory.by = by
    assert vm.sample(one) is None
