"""A process whose method hook is registered, and what its rings tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.agent.arming import Armed
from rbtrace_py.agent.ring import Ring
from rbtrace_py.agent.shared import Condition
from rbtrace_py.agent.values import values_of
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallNesting,
    ReportedCall,
)
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.model.calls import UNKNOWN_METHOD

MAX_METHODS = 65_536

_CONDITIONS = {
    Condition.METHODS_FULL: f"it called more than {MAX_METHODS:,} methods; the"
    " rest are in (no room)",
    Condition.STREAMS_FULL: "it had too many threads and fibers at once; calls of"
    " some idle ones were dropped (a smaller --buffer"
    " leaves space for more)",
    Condition.NO_INNER: "it uses Ractors: collections and new objects were not"
    " traced after the first Ractor, since hooks on them"
    " crash Ruby before 3.3",
}


@dataclass(frozen=True, slots=True)
class CallsEnd:
    """The report on a process when it is over.

    counters: by docs/formats's names; 0 where there is nothing to say
    stays: what is not as it was before, in words
    notes: what was not as it should be, in words
    problem: why it ended, if nobody wished it; None also for a process that ended
    """

    pid: int
    counters: dict[str, int]
    stays: tuple[str, ...]
    notes: tuple[str, ...]
    problem: RbtraceError | None


class TracedProcess:
    """A process whose hook is registered."""

    def __init__(self, pid: int, armed: Armed, has_cpu: bool) -> None:
        self.pid = pid
        self.armed = armed
        self._ring = Ring(armed.shared)
        self._nesting = CallNesting(has_cpu, armed.shares_natives)
        self._last = armed.shared.header.armed.ticks
        self._untold = 0
        self._given_up = 0

    def step(self, until: int | None = None) -> Iterator[ReportedCall]:
        if until is None:
            self.armed.keep_learning()
        found = self._ring.step()
        self._untold = len(found)
        for when, stream, record in found:
            self._untold -= 1
            if until is not None and when > until:
                continue
            self._last = when
            for event in self._nesting.feed(stream, record):
                yield self._reported(event)

    def waiting(self) -> int:
        """Events that have come and were not told yet."""
        return self._untold + self._ring.waiting()

    def drop(self, is_lost: bool) -> None:
        """Take the hook out; what is not told yet will not be.

        is_lost: it counts as such
        """
        self._stop()
        self._given_up += self.waiting() if is_lost else 0

    def finish(self) -> Iterator[ReportedCall]:
        until = self._stop()
        # A process that lies might go on for ever.
        left = self._ring.waiting()
        try:
            while left > 0:
                before = self._ring.count
                yield from self.step(until)
                if self._ring.count == before:
                    break
                left -= self._ring.count - before
        except (GeneratorExit, KeyboardInterrupt):
            self._given_up += self.waiting()
            raise
        for event in self._nesting.finish(self._last):
            yield self._reported(event)

    def end(self) -> CallsEnd:
        found = self.armed.counters()
        counters = {
            "running_at_attach": found.orphans,
            "abandoned": found.abandoned,
            "no_method": found.no_method,
            "lost": self._ring.dropped() + self._given_up,
            "no_stream": found.no_stream,
            "too_deep": found.too_deep,
            "no_values": found.no_values,
            "silent": int(Condition.SILENT in found.conditions),
            "left_out": int(Condition.LEFT_OUT in found.conditions),
            "targeted": int(self.armed.targets is not None),
            "other_ractors": int(Condition.OTHER_RACTORS in found.conditions),
        }
        problem = self.armed.ended
        notes = tuple(
            text for bit, text in _CONDITIONS.items() if found.conditions & bit
        )
        if isinstance(problem, NoSuchTarget):
            return CallsEnd(self.pid, counters, (), notes, None)
        return CallsEnd(self.pid, counters, self.armed.overhead, notes, problem)

    def _stop(self) -> int | None:
        """Take the hook out; what is later (ticks) has perhaps no names any more."""
        if self.armed.ended is not None:
            return None
        try:
            until = self.armed.clock().ticks
        except RbtraceError as error:
            self.armed.ended = error
            return None
        self.armed.learn()
        return until if self.armed.disarm() else None

    def _reported(self, event: CallEvent) -> ReportedCall:
        """With names, and CLOCK_REALTIME for ticks."""
        armed, offset = self.armed, self.armed.wall_offset
        event.time = armed.scale.to_ns(event.time) + offset
        if event.start is not None:
            event.start = armed.scale.to_ns(event.start) + offset
        known = event.what is not CallEventKind.LOST
        method = armed.method(event.method) if known else UNKNOWN_METHOD
        values = values_of(event.text, armed.select) if event.text else ()
        return ReportedCall(self.pid, event, method, values)
