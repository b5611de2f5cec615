"""The tables that the agent's hook keeps in shared memory (docs/agent/memory.md).

The target keeps writing while this module reads. Wrong data raises BrokenAgent or
causes wrong numbers, but it costs only limited time and memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from rbtrace_py.agent.header import BLOCK_COUNTERS, BUCKETS, COUNTER_BITS, LEVELS
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import SharedMemory, SharedMethod
from rbtrace_py.model.calls import MethodKind, TickScale

_KINDS = frozenset(MethodKind)
_COUNTERS = range(BLOCK_COUNTERS)
_MOST = (1 << 63) - 1
"""Maximum of a count, because JSON readers accept no larger integers."""
_REREADS = 1000
"""Maximum rereads of histograms in the middle of a carry, which takes nanoseconds. The
limit is per ``read``, because a killed process leaves its carry unfinished."""
_REREAD_BLOCKS = 50_000
"""Maximum number of blocks in these rereads."""
MAX_BUCKETS = 1 << 22
"""Maximum nonzero buckets of all methods. Each takes about 100 bytes here."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The hook's counts of a method; times in nanoseconds.

    Attributes:
        index: The method's number.
        kind: A MethodKind.
        entries: Calls that began.
        calls: Calls that returned.
        total: Time inside it, counting recursive calls once.
        own: ``total`` without its callees.
        summed: Sum of the durations of all calls.
        longest: Longest call.
        buckets: Calls by bucket of an HdrHistogram(1, 3.6e12, digits) of nanoseconds.
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
    """Reads a memory's tables repeatedly; unchanged methods are not read again."""

    def __init__(self, memory: SharedMemory, scale: TickScale) -> None:
        self._memory = memory
        self._ns = scale.duration
        self._known: dict[int, tuple[SharedMethod, Counted]] = {}
        # By method: block, part, level, block, part, level, …
        self._blocks: dict[int, array[int]] = {}
        self._sizes: dict[int, int] = {}  # buckets by method
        self._size = 0
        self._rereads = self._reread_blocks = 0
        self._blocks_seen = 1  # number 0 is unused

    def read(self, is_timed: bool = True) -> list[Counted]:
        """Return the current state of each method with events; raises BrokenAgent.

        A method without new events keeps its object from the previous call.

        Args:
            is_timed: Include times and histograms, which take longer to read.
        """
        rows = self._memory.methods(0, self._memory.counters().methods)
        rows = [r for r in rows if (r.entries or r.calls) and r.kind in _KINDS]
        self._rereads, self._reread_blocks = _REREADS, _REREAD_BLOCKS
        if is_timed:
            self._see_blocks()
        changed = [row for row in rows if self._known.get(row.index, (None,))[0] != row]
        count = self._timed if is_timed else _entered
        found = {row.index: count(row) for row in changed}
        if is_timed:
            self._add_waiting(found)
        for row in changed:
            # The hook updates a call's histogram last.
            if not is_timed or _is_complete(found[row.index]):
                self._known[row.index] = row, found[row.index]
        return [found.get(row.index) or self._known[row.index][1] for row in rows]

    def _add_waiting(self, found: dict[int, Counted]) -> None:
        """Add calls whose durations the hook withholds until the next return."""
        for method, bucket in self._memory.waiting():
            counted = found.get(method)
            if counted and sum(counted.buckets.values()) < counted.calls:
                counted.buckets[bucket] = counted.buckets.get(bucket, 0) + 1

    def _timed(self, row: SharedMethod) -> Counted:
        return Counted(
            row.index, row.kind, min(row.entries, _MOST), min(row.calls, _MOST),
            self._ns(row.total), self._ns(row.self), self._ns(row.sum),
            self._ns(row.max), self._buckets(row) if row.calls else {},
        )  # fmt: skip

    def _see_blocks(self) -> None:
        """Collect new histogram blocks; a block's owner never changes."""
        if not self._memory.header.digits:
            return
        last = max(self._memory.counters().blocks, self._blocks_seen)
        places = self._memory.places(self._blocks_seen, last)
        parts = BUCKETS[self._memory.header.digits] // BLOCK_COUNTERS
        for block, (method, part, level) in enumerate(places, self._blocks_seen):
            known = self._blocks.setdefault(method, array("I"))
            if len(known) >= parts * LEVELS * 3:
                raise BrokenAgent("the agent's memory has two blocks for one place")
            known.extend((block, part, level))
        self._blocks_seen = last

    def _buckets(self, row: SharedMethod) -> dict[int, int]:
        blocks = self._blocks.get(row.index, ())
        while True:
            before = self._memory.carries()
            found = self._add_up(blocks)
            is_whole = before % 2 == 0 and before == self._memory.carries()
            if is_whole or self._rereads <= 0 or self._reread_blocks <= 0:
                break
            self._rereads -= 1
            self._reread_blocks -= len(blocks) // 3
        self._size += len(found) - self._sizes.get(row.index, 0)
        self._sizes[row.index] = len(found)
        if self._size > MAX_BUCKETS:
            raise BrokenAgent(
                f"the agent's memory has more than {MAX_BUCKETS:,} buckets",
                "Select methods with -m, or use --digits 2",
            )
        return found

    def _add_up(self, blocks: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for block, part, level in zip(*[iter(blocks)] * 3, strict=True):
            counts = self._memory.counts(block)
            first, shift = part * BLOCK_COUNTERS, level * COUNTER_BITS
            # Most counters are 0.
            for i in compress(_COUNTERS, counts):
                known = found.get(first + i, 0)
                found[first + i] = min(known + (counts[i] << shift), _MOST)
        return found


def _is_complete(counted: Counted) -> bool:
    return sum(counted.buckets.values()) == counted.calls


def _entered(row: SharedMethod) -> Counted:
    return Counted(row.index, row.kind, min(row.entries, _MOST))
