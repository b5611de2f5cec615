"""Reported calls of a process, from the records of its rings."""

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
    """Facts about a process that are required to read its rings.

    Attributes:
        pid: Process id.
        scale: Converts ticks to nanoseconds.
        wall_offset: CLOCK_REALTIME minus ``scale.to_ns``, in nanoseconds.
        expressions: Expressions of each selector.
        has_cpu: Each return is followed by a record of its CPU time.
        shares_natives: Kernel threads run several Ruby threads each.
        record_size: Bytes of a record.
    """

    pid: int
    scale: TickScale
    wall_offset: int = 0
    expressions: Sequence[Sequence[str]] = ()
    has_cpu: bool = False
    shares_natives: bool = False
    record_size: int = CALL_RECORD_SIZE


class ReportedCalls:
    """Turns the records of a process into events.

    Args:
        process: The process.
        method: Returns the method of a method number.
        until: Time in ticks after which records are ignored; None for no limit.
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
        """Number of records that were fed but whose events are not yet reported."""
        return self._untold + self._merge.waiting

    def feed(self, step: RingStep) -> Iterator[ReportedCall]:
        """Yield the events of a step in order."""
        yield from self._told(self._merge.feed(step))

    def finish(self) -> Iterator[ReportedCall]:
        """Yield the remaining events, and end the open calls without a return."""
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
        """Return an event with names, its times converted to CLOCK_REALTIME."""
        process = self._process
        to_ns, offset = process.scale.to_ns, process.wall_offset
        event.time = to_ns(event.time) + offset
        if event.start is not None:
            event.start = to_ns(event.start) + offset
        known = event.what is not CallEventKind.LOST
        method = self._method(event.method) if known else UNKNOWN_METHOD
        values = values_of(event.text, process.expressions) if event.text else ()
        return ReportedCall(process.pid, event, method, values)
