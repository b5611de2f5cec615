"""Times off the CPU that are still open when a report is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rbtrace_py.model.stack_walk import OffCpu, WalkedStack

_Key = tuple[bytes, OffCpu | None]


class OpenTimes:
    """Counts open times up to now, and only the remainder when they end."""

    def __init__(self) -> None:
        self._counted: Counter[_Key] = Counter()
        self._owed: set[_Key] = set()

    def due(
        self, over: Sequence[WalkedStack], still: Sequence[WalkedStack]
    ) -> Iterator[WalkedStack]:
        """Yield each stack with its weight since the last call.

        Args:
            over: Stacks of the times that ended since the last call, with their whole
                weight in ns.
            still: Stacks of the open times, weighted up to now. They are read after
                ``over``, so a time that ends in between is in neither, and its whole
                weight comes with the next call.
        """
        weights = Counter({key: -weight for key, weight in self._counted.items()})
        self._counted.clear()
        stacks = {}
        for stack in (*over, *still):
            key = (stack.key, stack.off_cpu)
            stacks[key] = stack
            weights[key] += stack.weight
        for stack in still:
            self._counted[stack.key, stack.off_cpu] += stack.weight
        owed = {key for key, weight in weights.items() if weight < 0} - self._owed
        for key in owed:
            self._counted[key] -= weights[key]
        self._owed = owed
        for key, weight in weights.items():
            if weight > 0:
                yield stacks[key]._replace(weight=weight)


class ToldTimes:
    """Reports open times up to now, and only the remainder when they end.

    Unlike OpenTimes, it handles each time separately.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], tuple[int, int]] = {}
        self._before: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._told.keys() | self._before.keys())

    def rest(self, stack: WalkedStack) -> int:
        """Return the weight of a time minus the part that was reported before."""
        began, ended = stack.time_ns - stack.weight, stack.time_ns
        nothing = ended, ended
        thread = stack.pid, stack.tid
        told = (one.get(thread, nothing) for one in (self._told, self._before))
        overlaps = (min(until, ended) - max(since, began) for since, until in told)
        # If both are parts of the same time, the newer includes the older. Otherwise
        # at most one overlaps.
        return stack.weight - max(0, *overlaps)

    def tell(self, still: Sequence[WalkedStack]) -> list[WalkedStack]:
        """Return the open times that have new weight, with only that weight."""
        found = [stack._replace(weight=self.rest(stack)) for stack in still]
        # A time that ended after its thread was in ``still`` may arrive later.
        self._before, self._told = (
            self._told,
            {
                (stack.pid, stack.tid): (stack.time_ns - stack.weight, stack.time_ns)
                for stack in still
            },
        )
        return [stack for stack in found if stack.weight]
