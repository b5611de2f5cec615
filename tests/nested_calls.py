"""Interpreters of call records for tests: a tick is a nanosecond."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NoReturn

from rbtrace_py.aggregate.call_interpreter import CallInterpreter, HookedProcess
from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import CallEvent, CallStack
from rbtrace_py.aggregate.reportedcalls import ReportedCalls
from rbtrace_py.model.calls import (
    MAX_TICKS,
    UNKNOWN_METHOD,
    CallKind,
    CallRecord,
    RingStep,
    TickScale,
)

_SCALE = TickScale(0, 0, 1, 1)


class CallNesting:
    """An interpreter that returns the events of single records."""

    def __init__(
        self, has_cpu: bool = False, shares_natives: bool = False, pid: int = 0
    ) -> None:
        process = HookedProcess(
            pid, _SCALE, has_cpu=has_cpu, shares_natives=shares_natives
        )
        sink = ReportedCalls(process, lambda number: UNKNOWN_METHOD)
        self._interpreter = CallInterpreter(process, sink)

    @property
    def stacks(self) -> list[CallStack]:
        return self._interpreter.stacks

    def feed(self, stream: int, record: CallRecord) -> Sequence[CallEvent]:
        events = self._interpreter.feed(_step(stream, [record]))
        return tuple(reported.event for reported in events)

    def finish(self, time: int) -> Sequence[CallEvent]:
        """Let another stream begin a garbage collection at ``time``; end all calls."""
        assert self.feed(99, (time, 0, 0, CallKind.GC_BEGIN, 0)) == ()
        return tuple(reported.event for reported in self._interpreter.finish())


def fold_stream(fold: CallFold, pid: int, records: Iterable[CallRecord]) -> None:
    """Fold all records of a process with one stream."""
    interpreter = CallInterpreter[NoReturn](HookedProcess(pid, _SCALE), fold)
    for _ in (*interpreter.feed(_step(0, records)), *interpreter.finish()):
        pass


def _step(stream: int, records: Iterable[CallRecord]) -> RingStep:
    data = b"".join(struct.pack("<QIHBB", *record) for record in records)
    return RingStep(MAX_TICKS, [(stream, data)])
