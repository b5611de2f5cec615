"""Tracks of timelines: one for each of Ruby's stacks, and one for its CPU.

When a thread was on a CPU is a track of its own beside that of its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.aggregate.switches import Span
from rbtrace_py.model.switches import Switch

Timeline = Iterable[ReportedCall | Switch]


class Tracks:
    """Numbers tracks from 1, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, reported: ReportedCall) -> tuple[int, bool]:
        """The number of an event's track, and whether it is a new one."""
        stack = reported.event.stack
        return self._number((reported.pid, stack.tid, stack.thread, stack.number))

    def of_cpu(self, thread: Thread) -> tuple[int, bool]:
        """The same of what a thread was."""
        return self._number(thread)

    def _number(self, key: tuple[int, ...]) -> tuple[int, bool]:
        known = self._numbers.get(key)
        if known is not None:
            return known, False
        number = self._numbers[key] = len(self._numbers) + 1
        return number, True


def track_name(reported: ReportedCall, names: Mapping[Thread, str]) -> str:
    """``worker 4711``, ``thread 4711``; of a fiber ``worker 4711.2``."""
    stack = reported.event.stack
    fiber = f".{stack.fiber}" if stack.fiber > 1 else ""
    return f"{names.get(reported.thread) or 'thread'} {stack.tid}{fiber}"


def cpu_track_name(thread: Thread, names: Mapping[Thread, str]) -> str:
    """``worker 4711 CPU``: viewers sort by name, so it comes behind the calls."""
    return f"{names.get(thread) or 'thread'} {thread[1]} CPU"


def span_name(span: Span) -> str:
    """``Running (CPU 3)``, ``Sleeping``."""
    where = "" if span.cpu is None else f" (CPU {span.cpu})"
    return f"{span.state.value}{where}"


def lost_name(switch: Switch) -> str:
    """Return the name of a loss."""
    one = "1 switch" if switch.value == 1 else f"{switch.value} switches"
    return f"{one} lost"
