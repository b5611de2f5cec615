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
