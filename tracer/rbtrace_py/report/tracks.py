"""What timelines have in common: a track for each of Ruby's stacks."""

from __future__ import annotations

from collections.abc import Mapping

from rbtrace_py.aggregate.calls import CallStack, Told


class Tracks:
    """Numbers stacks from 1, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int, int], int] = {}

    def of(self, told: Told) -> tuple[int, bool]:
        """The number of an event's track, and whether it is a new one."""
        stack = told.event.stack
        key = (told.pid, stack.tid, stack.thread, stack.number)
        known = self._numbers.get(key)
        if known is not None:
            return known, False
        number = self._numbers[key] = len(self._numbers) + 1
        return number, True


def track_name(stack: CallStack, names: Mapping[int, str]) -> str:
    """``worker 4711``, ``thread 4711``; of a fiber ``worker 4711.2``."""
    fiber = f".{stack.fiber}" if stack.fiber > 1 else ""
    return f"{names.get(stack.tid) or 'thread'} {stack.tid}{fiber}"
