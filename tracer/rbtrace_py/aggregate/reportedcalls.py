"""Calls of a process as they are reported, from the records of its rings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rbtrace_py.aggregate.callmerge import CallMerge, Placed
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallNesting,
    ReportedCall,
)
from rbtrace_py.aggregate.callvalues import values_of
from rbtrace_py.model.calls import (
    CALL_RECORD_SIZE,
    UNKNOWN_METHOD,
    CalledMethod,
    RingStep,
    TickScale,
)


@dataclass(frozen=True, eq=False)
class HookedProcess:
    """Facts about a process without which its rings cannot be read.

    wall_offset: CLOCK_REALTIME less what ``scale.to_ns`` says, in nanoseconds
    expressions: of each selector
    has_cpu: each return is followed by a record of its CPU time
    shares_natives: Ruby threads take turns on kernel threads
    """

    pid: int
    scale: TickScale
    wall_offset: int = 0
    expressions: Sequence[Sequence[str]] = ()
    has_cpu: bool = False
    shares_natives: bool = False
    record_size: int = CALL_RECORD_SIZE


class ReportedCalls:
    """Makes events of records; ``method`` says what a number of a method means.

    until: time in ticks after which records are left out
    """

    def __init__(
        self,
        process: HookedProcess,
        method: Callable[[int], CalledMethod],
        until: int | None = None,
    ) -> None:
        self.until = until
        self._process = process
        self._method = method
        self._merge = CallMerge(process.record_size)
        self._nesting = CallNesting(process.has_cpu, process.shares_natives)
        self._last = process.scale.zero_ticks
        self._untold = 0

    @property
    def waiting(self) -> int:
        """Records that were fed, and of which nothing is told yet."""
        return self._untold + self._merge.waiting

    def feed(self, step: RingStep) -> Iterator[ReportedCall]:
        """Yield what happened, in order."""
        yield from self._told(self._merge.feed(step))

    def finish(self) -> Iterator[ReportedCall]:
        """Yield the rest: no more comes, and what is open ends without a return."""
        yield from self._told(self._merge.rest())
        for event in self._nesting.finish(self._last):
            yield self._reported(event)

    def _told(self, placed: list[Placed]) -> Iterator[ReportedCall]:
        self._untold = len(placed)
        for when, stream, record in placed:
            self._untold -= 1
            if self.until is not None and when > self.until:
                continue
            self._last = when
            for event in self._nesting.feed(stream, record):
                yield self._reported(event)

    def _reported(self, event: CallEvent) -> ReportedCall:
        """With names, and CLOCK_REALTIME for ticks."""
        process = self._process
        to_ns, offset = process.scale.to_ns, process.wall_offset
        event.time = to_ns(event.time) + offset
        if event.start is not None:
            event.start = to_ns(event.start) + offset
        known = event.what is not CallEventKind.LOST
        method = self._method(event.method) if known else UNKNOWN_METHOD
        values = values_of(event.text, process.expressions) if event.text else ()
        return ReportedCall(process.pid, event, method, values)
