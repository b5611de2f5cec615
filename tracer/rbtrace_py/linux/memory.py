"""Memory of a target, through a narrow protocol.

A walker that knows only ``Memory`` works on a process, a core file and a recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Memory(Protocol):
    """Bytes by address. Raises UnreadableMemory where there are none."""

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        ...

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size), with one system call.

        They are read in that order, so that a range named twice tells whether it
        changed meanwhile.
        """
        ...
