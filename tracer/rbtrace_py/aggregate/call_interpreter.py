"""Interpreter of call records, from the bytes of a process's rings to its calls.

A live ring and a recording are interpreted alike. ``CallMerge`` sorts the records of
all streams. ``CallInterpreter`` matches each entry with its return and calls a sink:
``ReportedCalls`` makes events with names and times, ``CallFold`` counts.
docs/agent/memory.md, "Records", specifies the format.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter, length_hint
from typing import Generic, Protocol, TypeVar

from rbtrace_py.aggregate.calls import CallEvent, CallEventKind, CallStack
from rbtrace_py.model.calls import (
    CALL_ORPHAN,
    CALL_RECORD_SIZE,
    CALL_TEXT_GOES_ON,
    CALL_TEXT_SIZE,
    CALL_VALUES,
    MAX_TICKS,
    TIMELESS,
    CallKind,
    CallRecord,
    RingStep,
    TickScale,
)

Placed = tuple[int, int, CallRecord]
"""Time, stream, and record. Times are in ticks and never decrease in a stream."""
_MOST_HELD = 1 << 21
"""Maximum number of records that wait for earlier records.

A corrupt process may never publish the earlier records.
"""
MAX_DEPTH = 16_384
"""Maximum number of enclosing calls; the hook does not record deeper calls."""
_MAX_THREADS = 65_536
_MAX_TEXT = 2048
"""Maximum bytes of a call's values; the hook writes at most 1,200."""
_TEXT = struct.Struct("<QIH")
"""Text bytes of a TEXT record: other records have time, method, and depth there."""
# Members of an enumeration are slow to compare.
_ENTRIES = (int(CallKind.ENTRY), int(CallKind.C_ENTRY))
_RETURNS = (int(CallKind.RETURN), int(CallKind.C_RETURN))
_TIMELESS = frozenset(map(int, TIMELESS))
_METHOD, _DEPTH, _KIND = 1, 2, 3
"""Indexes of fields of a record."""
_time_of = itemgetter(0)

Result = TypeVar("Result", covariant=True)
"""Results of a sink."""


@dataclass(frozen=True, eq=False)
class HookedProcess:
    """Facts about a process that are required to read its rings.

    Attributes:
        pid: Process id.
        scale: Converts ticks to nanoseconds.
        wall_offset: CLOCK_REALTIME minus ``scale.to_ns``, in nanoseconds.
        expressions: Expressions of each selector.
        has_cpu: Each return is followed by a record of its CPU time.
        shares_natives: Kernel threads run several Ruby threads each; stacks are
            numbered per kernel thread.
        record_size: Bytes of a record.
    """

    pid: int
    scale: TickScale
    wall_offset: int = 0
    expressions: Sequence[Sequence[str]] = ()
    has_cpu: bool = False
    shares_natives: bool = False
    record_size: int = CALL_RECORD_SIZE


class CallMerge:
    """Merges the records of a process's streams in the order of their times.

    In mode slow, records arrive late and are in order only within one step.
    ``record_size`` is in bytes and includes fields that this version does not know.
    """

    def __init__(self, record_size: int = CALL_RECORD_SIZE) -> None:
        self._record = struct.Struct(f"<QIHBB{record_size - CALL_RECORD_SIZE}x")
        self._times: dict[int, int] = {}
        self._held: list[Placed] = []

    @property
    def waiting(self) -> int:
        """Number of records that wait for earlier records."""
        return len(self._held)

    def feed(self, step: RingStep) -> list[Placed]:
        """Return, in order, the records that no missing record can precede."""
        placed, self._held = self._held, []
        for stream, data in step.parts:
            now = self._times.get(stream, 0)
            for record in self._record.iter_unpack(data):
                if record[0] > now and record[_KIND] not in _TIMELESS:
                    now = record[0]
                placed.append((now, stream, record))
            self._times[stream] = now
        placed.sort(key=_time_of)
        if len(placed) <= _MOST_HELD:
            # The records STACK, PLACE, and THREAD of a stack have the same time, so
            # they stay together.
            complete = bisect_right(placed, step.complete, key=_time_of)
            self._held = placed[complete:]
            del placed[complete:]
        return placed

    def rest(self) -> list[Placed]:
        """Return the records that still wait; call this after the last step."""
        return self.feed(RingStep(MAX_TICKS, []))


class CallSink(Protocol[Result]):
    """Receiver of a process's calls, in the order of each stack.

    A call is the record of its entry. Times are in ticks. The interpreter yields each
    result, but not None.
    """

    def entered(self, stack: CallStack, call: CallRecord) -> Result | None:
        """Begin a call."""

    def returned(
        self,
        stack: CallStack,
        call: CallRecord | None,
        end: CallRecord,
        cpu_ns: int | None,
    ) -> Result | None:
        """End a call.

        Args:
            stack: The stack.
            call: The call; None if it began before the hook was armed.
            end: Record of its return.
            cpu_ns: CPU time of the call, if it was requested.
        """

    def ended(self, stack: CallStack, call: CallRecord, time: int) -> Result | None:
        """End a call without a return, as in ``CallEventKind.ENDED``."""

    def occurred(self, event: CallEvent) -> Result | None:
        """Handle a loss, a garbage collection, an exception, or a new object."""


class CallInterpreter(Generic[Result]):
    """Interprets a process's records and yields the results of its sink.

    Attributes:
        until: Time in ticks after which records are ignored.
    """

    def __init__(
        self, process: HookedProcess, sink: CallSink[Result], until: int | None = None
    ) -> None:
        self.until = MAX_TICKS if until is None else until
        self._process = process
        self._sink = sink
        self._merge = CallMerge(process.record_size)
        self._placed: Iterator[Placed] = iter(())
        self._last = process.scale.zero_ticks
        self._stacks: dict[int, CallStack] = {}
        self._pending: dict[int, tuple[CallStack, CallRecord | None, CallRecord]] = {}
        self._fibers: dict[tuple[int, int], int] = {}

    @property
    def stacks(self) -> list[CallStack]:
        """The current stack of each stream."""
        return list(self._stacks.values())

    @property
    def waiting(self) -> int:
        """Number of records that were fed but not yet interpreted."""
        return length_hint(self._placed) + self._merge.waiting

    def feed(self, step: RingStep) -> Iterator[Result]:
        """Interpret, in order, the records that no missing record can precede."""
        self._placed = iter(self._merge.feed(step))
        return self._interpret()

    def finish(self) -> Iterator[Result]:
        """Interpret the remaining records, and end the open calls without a return."""
        self._placed = iter(self._merge.rest())
        yield from self._interpret()
        sink = self._sink
        for stack, call, record in self._pending.values():
            if record[_KIND] in _ENTRIES:
                result = sink.entered(stack, _without_values(record))
            else:
                result = sink.returned(stack, call, record, None)
            if result is not None:
                yield result
        self._pending.clear()
        for stack in self._stacks.values():
            yield from self._end(stack, 0, self._last)

    def _interpret(self) -> Iterator[Result]:
        """Interpret the placed records.

        There may be millions per second, so an entry or return is interpreted inline:
        only the sink is called.
        """
        stacks, pending, has_cpu = self._stacks, self._pending, self._process.has_cpu
        entered, returned = self._sink.entered, self._sink.returned
        for when, stream, record in self._placed:
            if when > self.until:
                continue
            self._last = when
            time, method, depth, kind, flags = record
            stack = stacks.get(stream)
            if stack is None:
                stack = stacks[stream] = CallStack(pid=self._process.pid)
            if pending and stream in pending:
                result, is_part = self._complete(stream, record)
                if result is not None:
                    yield result
                if is_part:
                    continue
            if depth > MAX_DEPTH:
                continue
            result, calls = None, stack.open
            if kind in _ENTRIES:
                if calls and calls[-1][_DEPTH] >= depth:
                    yield from self._end(stack, depth, stack.last)
                stack.last, stack.leaf = time, record
                calls.append(record)
                if flags & CALL_VALUES:
                    stack.texts[depth] = b""
                    pending[stream] = (stack, None, record)
                else:
                    result = entered(stack, record)
            elif kind in _RETURNS:
                call = None
                if not flags & CALL_ORPHAN:
                    if calls and calls[-1][_DEPTH] > depth:
                        yield from self._end(stack, depth + 1, stack.last)
                    if calls and calls[-1][_DEPTH] == depth:
                        if calls[-1][_METHOD] == method:
                            call = calls.pop()
                        else:
                            yield from self._end(stack, depth, stack.last)
                    stack.last = time
                if has_cpu:
                    pending[stream] = (stack, call, record)
                else:
                    result = returned(stack, call, record, None)
            elif kind == CallKind.STACK:
                stacks[stream] = CallStack(method, pid=self._process.pid)
                yield from self._end(stack, 0, stack.last)
            else:
                result = self._interpret_rare(stack, record)
            if result is not None:
                yield result

    def _complete(self, stream: int, record: CallRecord) -> tuple[Result | None, bool]:
        """Add a record to the entry or return that waits for its values or CPU time.

        Returns:
            The sink's result, and whether the record was a part of the entry or return.
        """
        stack, call, first = self._pending[stream]
        *fields, kind, flags = record
        if first[_KIND] in _RETURNS:
            del self._pending[stream]
            cpu_ns = fields[0] if kind == CallKind.CPU else None
            return self._sink.returned(stack, call, first, cpu_ns), cpu_ns is not None
        if kind == CallKind.TEXT:
            text = stack.texts[first[_DEPTH]]
            text += _TEXT.pack(*fields)[: flags & CALL_TEXT_SIZE]
            stack.texts[first[_DEPTH]] = text
            if flags & CALL_TEXT_GOES_ON and len(text) < _MAX_TEXT:
                return None, True
            del self._pending[stream]
            return self._sink.entered(stack, first), True
        del self._pending[stream]
        return self._sink.entered(stack, _without_values(first)), False

    def _end(self, stack: CallStack, depth: int, time: int) -> Iterator[Result]:
        """End calls of at least this depth without a return, innermost first."""
        while stack.open and stack.open[-1][_DEPTH] >= depth:
            result = self._sink.ended(stack, stack.open.pop(), time)
            if result is not None:
                yield result

    def _interpret_rare(self, stack: CallStack, record: CallRecord) -> Result | None:
        """Interpret a record that is not an entry, a return, or a new stack."""
        time, method, depth, kind, _ = record
        depth, occurred = min(depth, len(stack.open)), self._sink.occurred
        if kind == CallKind.PLACE:
            stack.ec, stack.tid = time, method
        elif kind == CallKind.THREAD:
            stack.thread = time
            stack.fiber = self._number_of(stack)
        elif kind == CallKind.LOST:
            return occurred(
                CallEvent(CallEventKind.LOST, stack, time, 0, depth, count=method)
            )
        elif kind == CallKind.GC_BEGIN:
            stack.gc_since = time
        elif kind == CallKind.GC_END:
            since, stack.gc_since, stack.leaf = stack.gc_since, None, None
            what = CallEventKind.COLLECTED
            return occurred(CallEvent(what, stack, time, method, depth, since))
        elif kind == CallKind.RAISE:
            return occurred(CallEvent(CallEventKind.RAISED, stack, time, method, depth))
        elif kind == CallKind.OBJECT:
            what = CallEventKind.ALLOCATED
            return occurred(CallEvent(what, stack, time, method, depth))
        return None

    def _number_of(self, stack: CallStack) -> int:
        """Return a stack's number in its thread, or in its kernel thread if shared."""
        if len(self._fibers) >= _MAX_THREADS:
            self._fibers.clear()
        is_shared = self._process.shares_natives
        key = (stack.tid, 0 if is_shared else stack.thread)
        number = self._fibers[key] = self._fibers.get(key, 0) + 1
        return number


def _without_values(entry: CallRecord) -> CallRecord:
    """Return an entry whose values are incomplete: its event must not show them."""
    return (*entry[:4], entry[4] & ~CALL_VALUES)
