"""All calls of processes with the agent, folded into call trees as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NoReturn

from rbtrace_py.agent.arming import Armed
from rbtrace_py.aggregate.call_interpreter import CallInterpreter
from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.session.methods.calls import CallsOptions, TracedCalls
from rbtrace_py.session.methods.traced_process import InterpretedProcess, hooked
from rbtrace_py.session.targets.targets import Targets

_STEP_SECONDS = 0.1


class FoldedCalls(TracedCalls[NoReturn]):
    """A session of folded calls: ``take`` returns them, and ``events`` is empty."""

    def __init__(self, targets: Targets, options: CallsOptions) -> None:
        super().__init__(targets, options)
        self._folds: list[_Folded] = []

    def trace(self, pid: int, armed: Armed) -> _Folded:
        folded = _Folded(pid, armed)
        self._folds.append(folded)
        return folded

    def finish(self) -> None:
        """Disarm the hooks, and fold earlier events."""
        for _ in self.drain():
            pass

    @property
    def seen(self) -> int:
        """Number of calls."""
        return sum(each.fold.calls for each in self._folds)

    @property
    def unreturned(self) -> int:
        """Number of calls without a return; they count until their last event."""
        return sum(each.fold.unreturned for each in self._folds)

    @property
    def other(self) -> int:
        """Number of calls on paths that exceed the limit."""
        return sum(each.fold.other for each in self._folds)

    @property
    def lost(self) -> int:
        """Number of lost events; the last ones appear only in the agent's counters."""
        reported = sum(each.fold.lost for each in self._folds)
        return max(reported, self.counters().get("lost", 0))

    def take(
        self, statistics: Statistics, calls: StackCounts | None = None
    ) -> StackCounts:
        """Return the calls folded since the last call, as stacks.

        Args:
            statistics: Its ``unit`` selects the weight: ``ns`` of own time, or calls.
            calls: Receives the same stacks with their numbers of calls.
        """
        counts = StackCounts(statistics)
        for each in self._folds:
            each.take(counts, self.thread_names, statistics.unit == "ns", calls)
        return counts


class _Folded(InterpretedProcess[NoReturn]):
    """The folded calls of one process."""

    def __init__(self, pid: int, armed: Armed) -> None:
        self.fold = CallFold(pid)
        super().__init__(pid, armed, CallInterpreter(hooked(pid, armed), self.fold))

    def step(self) -> Iterator[NoReturn]:
        self.learn()
        ends = time.monotonic() + _STEP_SECONDS
        while time.monotonic() < ends and (step := self._ring.step()):
            yield from self._calls.feed(step)

    def rest(self) -> Iterator[NoReturn]:
        yield from super().rest()
        self.fold.name_methods(self.armed.method)

    def take(
        self,
        counts: StackCounts,
        names: Mapping[Thread, str],
        is_time: bool,
        calls: StackCounts | None,
    ) -> None:
        duration = self.armed.scale.duration if is_time else None
        self.fold.take(counts, names, duration, calls, self.armed.method)
