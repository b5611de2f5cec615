"""The tables that the agent's hook keeps in shared memory (docs/agent.md, mode table).

The target goes on writing while this reads. One that lies gets a BrokenAgent, or
numbers of its own choice: what it costs us has bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rbtrace_py.agent.arming import Scale
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import SharedMemory, SharedMethod
from rbtrace_py.model.calls import MethodKind

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


class Tables:
    """Reads a memory's tables again and again; what did not change is not read anew."""

    def __init__(self, memory: SharedMemory, scale: Scale) -> None:
        self._memory = memory
        self._ns = scale.duration
        self._known: dict[int, tuple[SharedMethod, Counted]] = {}
        self._blocks_left = 0

    def read(self, is_timed: bool = True) -> list[Counted]:
        """Every method that has events, as it is now; raises BrokenAgent.

        The same object as before for one that has had no more since.

        is_timed: with times and histograms, which take longer to read
        """
        # Each block belongs to one method.
        self._blocks_left = self._memory.header.blocks.capacity
        rows = self._memory.methods(0, self._memory.counters().methods)
        return [
            self._counted(row, is_timed)
            for row in rows
            if (row.entries or row.calls) and row.kind in _KINDS
        ]

    def _counted(self, row: SharedMethod, is_timed: bool) -> Counted:
        known = self._known.get(row.index)
        if known is not None and known[0] == row:
            return known[1]
        counted = self._timed(row) if is_timed else _entered(row)
        # The hook enters a call into its histogram last.
        if not is_timed or sum(counted.buckets.values()) == row.calls:
            self._known[row.index] = row, counted
        return counted

    def _timed(self, row: SharedMethod) -> Counted:
        return Counted(
            row.index, row.kind, min(row.entries, _MOST), min(row.calls, _MOST),
            self._ns(row.total), self._ns(row.self), self._ns(row.sum),
            self._ns(row.max), dict(self._buckets(row)) if row.calls else {},
        )  # fmt: skip

    def _buckets(self, row: SharedMethod) -> Iterator[tuple[int, int]]:
        for first, counts in self._memory.histogram(row.index):
            self._blocks_left -= 1
            if self._blocks_left < 0:
                raise BrokenAgent("the agent's memory has more histograms than blocks")
            yield from ((i, min(n, _MOST)) for i, n in enumerate(counts, first) if n)


def _entered(row: SharedMethod) -> Counted:
    return Counted(row.index, row.kind, min(row.entries, _MOST))
