"""All calls of processes with the agent, as unchanged records for a recording."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rbtrace_py.agent.arming import Armed
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import TicksOf
from rbtrace_py.model.calls import CALL_ORPHAN, FLAGS_AT, KIND_AT, CallKind, RingStep
from rbtrace_py.recording.call_blocks import MOST_AT_ONCE, MOST_RECORD
from rbtrace_py.recording.call_writer import RecordedStep
from rbtrace_py.session.methods.calls import TracedCalls
from rbtrace_py.session.methods.traced_process import TracedProcess, hooked

_LOOK_SECONDS = 1.0
"""Seconds between two reads of the hook's clock and of the number of lost events."""
_BEHIND = 4
"""A ring is read again at once if at least 1/_BEHIND of it was full."""

_IS_RETURN = bytes(k in (CallKind.RETURN, CallKind.C_RETURN) for k in range(256))
_IS_ORPHAN = bytes(bool(flags & CALL_ORPHAN) for flags in range(256))
"""1 or 0 for each kind, and for each value of the flags."""


class RecordedCalls(TracedCalls[RecordedStep]):
    """A session of the steps of all processes, for a recording."""

    def trace(self, pid: int, armed: Armed) -> RecordedProcess:
        return RecordedProcess(pid, armed)


class RecordedProcess(TracedProcess[RecordedStep]):
    """A process whose records are written without changes."""

    def __init__(self, pid: int, armed: Armed) -> None:
        super().__init__(pid, armed)
        self._process = hooked(pid, armed)
        if self._process.record_size > MOST_RECORD:
            raise BrokenAgent(
                f"the agent's records have {self._process.record_size} bytes"
            )
        self._named = 0
        self._until: int | None = None
        self._looked = time.monotonic()

    def step(self) -> Iterator[RecordedStep]:
        has_looked = self._is_time_to_look()
        clock = self._clock() if has_looked else None
        step = self._ring.step(MOST_AT_ONCE // self._process.record_size)
        if step is None:
            self.is_behind = False
        else:
            memory = self.armed.shared
            size, most = memory.record_size, memory.header.ring_records
            records = max((len(data) // size for _, data in step.parts), default=0)
            self.is_behind = records * _BEHIND >= most
        self.learn()
        if step or has_looked or len(self.armed.names) > self._named:
            yield self._told(step, clock, has_looked)

    def learn(self) -> None:
        """Request the names in the records so far, so that a kill loses none."""
        is_there = not self._is_stopped and self.armed.ended is None
        if is_there and self.armed.counters().methods > len(self.armed.names):
            self.armed.learn()
        else:
            super().learn()

    def stopped(self, until: int) -> None:
        self._until = until

    def rest(self) -> Iterator[RecordedStep]:
        yield self._told(None, None, ended=True)

    def _is_time_to_look(self) -> bool:
        now = time.monotonic()
        if self._is_stopped or self.armed.ended is not None:
            return False
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _clock(self) -> tuple[int, int] | None:
        """Read the hook's clock; return None if its rate is known."""
        if self.armed.shared.header.clock is TicksOf.MONOTONIC:
            return None
        pair = self.armed.look_at_clock()
        return None if pair is None else (pair.ticks, pair.ns)

    def _told(
        self,
        step: RingStep | None,
        clock: tuple[int, int] | None,
        has_looked: bool = True,
        ended: bool = False,
    ) -> RecordedStep:
        memory = self.armed.shared
        methods = self.armed.names[self._named :]
        self._named += len(methods)
        parts = step.parts if step else []
        return RecordedStep(
            self._process,
            step,
            methods,
            frozenset(memory.stream(stream).tid for stream, _ in parts),
            self._returned(parts),
            self._ring.dropped() if has_looked else 0,
            clock,
            self._until,
            ended,
        )

    def _returned(self, parts: list[tuple[int, bytes]]) -> int:
        """Return the number of calls that ended and had begun after arming."""
        size = self.armed.shared.record_size
        found = 0
        for _, data in parts:
            returns = data[KIND_AT::size].translate(_IS_RETURN)
            orphans = data[FLAGS_AT::size].translate(_IS_ORPHAN)
            both = int.from_bytes(returns, "big") & int.from_bytes(orphans, "big")
            found += returns.count(1) - both.bit_count()
        return found
