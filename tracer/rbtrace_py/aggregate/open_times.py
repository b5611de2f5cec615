"""Times that are not over yet, in reports that are made meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rbtrace_py.model.stack_walk import OffCpu, WalkedStack

_Key = tuple[bytes, OffCpu | None]


class OpenTimes:
    """Counts a time as far as it went, and only the rest once it is over."""

    def __init__(self) -> None:
        self._counted: Counter[_Key] = Counter()
        self._owed: set[_Key] = set()

    def due(
        self, over: Sequence[WalkedStack], still: Sequence[WalkedStack]
    ) -> Iterator[WalkedStack]:
        """Yield each stack with the weight that came since the last call.

        over: with the whole times that ended since
        still: with those that go on, until now; read after ``over``, so one that ended
            in between is in neither, and comes in whole the next time
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
    """Tells of times as far as they went, and of the rest once more is known.

    Unlike OpenTimes it is told of each time by itself.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], tuple[int, int]] = {}
        self._before: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._told.keys() | self._before.keys())

    def rest(self, stack: WalkedStack) -> int:
        """Return the weight of a time less what was told of it before."""
        began, ended = stack.time_ns - stack.weight, stack.time_ns
        nothing = ended, ended
        thread = stack.pid, stack.tid
        told = (one.get(thread, nothing) for one in (self._told, self._before))
        overlaps = (min(until, ended) - max(since, began) for since, until in told)
        # Where both are of one time, the newer covers the older; else one overlaps.
        return stack.weight - max(0, *overlaps)

    def tell(self, still: Sequence[WalkedStack]) -> list[WalkedStack]:
        """Return those that go on, with the weight that is new in them."""
        found = [stack._replace(weight=self.rest(stack)) for stack in still]
        # One that ended since its thread was in ``still`` may come after this call.
        self._before, self._told = (
            self._told,
            {
                (stack.pid, stack.tid): (stack.time_ns - stack.weight, stack.time_ns)
                for stack in still
            },
        )
        return [stack for stack in found if stack.weight]
