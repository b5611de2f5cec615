"""The tables that the agent's hook keeps in shared memory (docs/agent.md, mode table).

The target goes on writing while this reads. One that lies gets a BrokenAgent, or
numbers of its own choice: what it costs us has bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rbtrace_py.agent.arming import Scale
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import Method, SharedMemory
from rbtrace_py.model import MethodKind

_KINDS = frozenset(MethodKind)
_MOST = (1 << 63) - 1
"""What a count may come to; a reader of JSON takes no more."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the hook counted of a method; times in nanoseconds.

    index: of the method, by which it is named
    kind: a MethodKind
    entries, calls: that began, that returned
    total: inside it, recursive calls counted once; own: less those below it
    summed: of all calls, one by one; longest: of them
    buckets: of an HdrHistogram(1, 3.6e12, 3) of nanoseconds: bucket → calls
    """

    index: int
    kind: int
    entries: int
    calls: int = 0
    total: int = 0
    own: int = 0
    summed: int = 0
    longest: int = 0
    buckets: dict[int, int] = field(default_factory=dict)


def read_tables(
    memory: SharedMemory, scale: Scale, is_timed: bool = True
) -> list[Counted]:
    """Every method that has events, as it is now; raises BrokenAgent.

    is_timed: with times and histograms, which take longer to read
    """
    reader = _Reader(memory, scale)
    seen = memory.counters().methods
    rows = (m for m in memory.methods(0, seen) if m.entries or m.calls)
    rows = (m for m in rows if m.kind in _KINDS)
    return [reader.timed(row) if is_timed else _entered(row) for row in rows]


class _Reader:
    def __init__(self, memory: SharedMemory, scale: Scale) -> None:
        self._memory = memory
        self._ns = scale.duration
        # Each block belongs to one method.
        self._blocks_left = memory.header.blocks.capacity

    def timed(self, row: Method) -> Counted:
        # The histogram is read after what it is the histogram of, so it is not
        # behind; what is in no block is counted by the hook.
        return Counted(
            row.index, row.kind, min(row.entries, _MOST), min(row.calls, _MOST),
            self._ns(row.total), self._ns(row.self), self._ns(row.sum),
            self._ns(row.max), dict(self._buckets(row)) if row.calls else {},
        )  # fmt: skip

    def _buckets(self, row: Method) -> Iterator[tuple[int, int]]:
        for first, counts in self._memory.histogram(row.index):
            self._blocks_left -= 1
            if self._blocks_left < 0:
                raise BrokenAgent("the agent's memory has more histograms than blocks")
            yield from ((i, min(n, _MOST)) for i, n in enumerate(counts, first) if n)


def _entered(row: Method) -> Counted:
    return Counted(row.index, row.kind, min(row.entries, _MOST))
