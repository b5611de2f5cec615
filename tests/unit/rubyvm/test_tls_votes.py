"""The thread-local variable with the running context, if some threads run during the
reads."""

from __future__ import annotations

import struct

import pytest

from rbtrace_py.rubyvm import tls

PLACE, STALE, ROOM = -112, -2784, 0x4000
OLD = 0x1000
"""The context each thread had when it was listed."""


class Threads:
    """Memory with the bases of three threads, which also have OLD on their stacks.

    gone_on: those that run another context by now
    """

    pid = 1

    def __init__(self, gone_on: int) -> None:
        self.bases = [ROOM * (number + 1) for number in range(3)]
        self._data = bytearray(ROOM * 4)
        for number, base in enumerate(self.bases):
            self._put(base, base)
            self._put(base + STALE, OLD)
            self._put(base + PLACE, OLD + 8 if number < gone_on else OLD)

    def _put(self, address: int, word: int) -> None:
        struct.pack_into("=Q", self._data, address, word)

    def read(self, address: int, size: int) -> bytes:
        return bytes(self._data[address : address + size])


@pytest.mark.parametrize("gone_on", [0, 1])
def test_most_threads_say_it(gone_on: int) -> None:
    memory = Threads(gone_on)
    threads = [(base, OLD) for base in memory.bases]
    assert tls.distance(memory, threads) == PLACE  # type: ignore[arg-type]
