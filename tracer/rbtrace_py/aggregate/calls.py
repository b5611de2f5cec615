"""Matches the calls and returns of each stack (docs/agent/memory.md, "Records").

Turns the records of the agent's hook into events. Times keep the unit of the records.
Losses and missing returns are events at the point where they occurred.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from rbtrace_py.model.calls import (
    CALL_ORPHAN,
    CALL_TEXT_GOES_ON,
    CALL_TEXT_SIZE,
    CALL_VALUES,
    CalledMethod,
    CallKind,
    CallRecord,
)

MAX_DEPTH = 16_384
"""Maximum number of enclosing calls; the hook does not record deeper calls."""
_MAX_THREADS = 65_536
_MAX_TEXT = 2048
"""Maximum bytes of a call's values; the hook writes at most 1,200."""
_TEXT = struct.Struct("<QIH")
"""Text bytes of a TEXT record: other records have time, method, and depth there."""


Thread = tuple[int, int]
"""PID, and kernel thread id in the thread's own PID namespace.

Threads in two containers may have the same thread id.
"""


@dataclass(slots=True, eq=False)
class CallStack:
    """The Ruby stack of a thread or fiber.

    Attributes:
        number: Number of the stack; 0 while unknown.
        tid: Kernel thread id in the thread's own PID namespace.
        fiber: 1 for the first stack seen of a thread, 2 for the next, and so on.
        ec: Address of its execution context; 0 if unknown.
        thread: Address of its thread; 0 if unknown.
        open: Calls that have not returned, outermost first.
        gc_since: Start of the garbage collection in progress.
        last: Time of its last entry or return, which all open calls enclose.
    """

    number: int = 0
    tid: int = 0
    fiber: int = 1
    ec: int = 0
    thread: int = 0
    open: list[Open] = field(default_factory=list)
    gc_since: int | None = None
    last: int = 0


@dataclass(slots=True)
class Open:
    """A call of the method with number ``method`` that has not returned.

    ``is_leaf`` is True while it has made no calls. ``text`` is as in ``CallEvent``.
    """

    method: int
    depth: int
    start: int
    is_c: bool
    is_leaf: bool = True
    text: bytes = b""


class CallEventKind(IntEnum):
    """Kinds of events."""

    ENTERED = 1
    RETURNED = 2
    """``start`` is None if the call began before the hook was armed."""
    ENDED = 3
    """No return was recorded: it was lost, or the stack ended or overflowed.

    ``time`` is the time of the last entry or return inside the call."""
    LOST = 4
    """``count`` events are missing here."""
    COLLECTED = 5
    """A garbage collection from ``start`` (None if unknown) to ``time``."""
    RAISED = 6
    ALLOCATED = 7


# Members of an enumeration are slow to look up.
_ENTERED, _RETURNED = CallEventKind.ENTERED, CallEventKind.RETURNED
_C_ENTRY = int(CallKind.C_ENTRY)
_ENTRIES = (int(CallKind.ENTRY), _C_ENTRY)
_RETURNS = (int(CallKind.RETURN), int(CallKind.C_RETURN))


@dataclass(slots=True)
class CallEvent:
    """An event of a stack. Times are in the unit of the records.

    Attributes:
        what: Kind of event.
        stack: The stack.
        time: Time of the event; of a call or collection, its end.
        method: Number of the method; for RAISED and ALLOCATED, of the class.
        depth: Number of recorded calls that enclose it.
        start: Start of a call or collection; None if unknown.
        is_c: True if the method is a C function.
        is_leaf: True if the call made no recorded calls.
        count: Number of missing events (LOST).
        cpu_ns: CPU time of a call, if it was requested.
        text: Values of expressions at the call's entry, as the hook encodes them.
    """

    what: CallEventKind
    stack: CallStack
    time: int
    method: int = 0
    depth: int = 0
    start: int | None = None
    is_c: bool = False
    is_leaf: bool = True
    count: int = 0
    cpu_ns: int | None = None
    text: bytes = b""

    @property
    def duration(self) -> int | None:
        """The call's duration in the unit of the records' times; never less than 0."""
        return None if self.start is None else max(self.time - self.start, 0)


Values = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class ReportedCall:
    """An event of process ``pid`` for a report; times are CLOCK_REALTIME in ns.

    ``values`` are the pairs of expression and value at a call's entry.
    """

    pid: int
    event: CallEvent
    method: CalledMethod
    values: Values = ()

    @property
    def thread(self) -> Thread:
        """The thread that made the call."""
        return (self.pid, self.event.stack.tid)


class CallNesting:
    """The stacks of a process, by stream."""

    def __init__(self, has_cpu: bool = False, shares_natives: bool = False) -> None:
        """Make the nesting of a process.

        Args:
            has_cpu: Each return is followed by a record of its CPU time.
            shares_natives: Kernel threads run several Ruby threads each; stacks are
                numbered per kernel thread.
        """
        self._stacks: dict[int, CallStack] = {}
        self._returned: dict[int, CallEvent] = {}
        self._entered: dict[int, list[CallEvent]] = {}
        self._fibers: dict[tuple[int, int], int] = {}
        self._has_cpu = has_cpu
        self._shares_natives = shares_natives

    @property
    def stacks(self) -> list[CallStack]:
        """The current stacks."""
        return list(self._stacks.values())

    def feed(self, stream: int, record: CallRecord) -> Sequence[CallEvent]:
        """Return the events that a record of a stream completes, usually one."""
        time, method, depth, kind, flags = record
        stack = self._stacks.get(stream)
        if stack is None:
            stack = self._stacks[stream] = CallStack()
        if self._returned and stream in self._returned:
            return self._with_cpu(stream, stack, record)
        if self._entered and stream in self._entered:
            return self._with_text(stream, stack, record)
        if depth > MAX_DEPTH:
            return ()
        if kind in _ENTRIES:
            events = _enter(stack, time, method, depth, kind == _C_ENTRY)
            if flags & CALL_VALUES:
                self._entered[stream] = events
                return ()
            return events
        if kind in _RETURNS:
            events = _leave(stack, record)
            if self._has_cpu:
                self._returned[stream] = events.pop()
            return events
        if kind in (CallKind.STACK, CallKind.PLACE, CallKind.THREAD):
            return self._place(stream, stack, record)
        return _apart(stack, record)

    def finish(self, time: int) -> Iterator[CallEvent]:
        """End the open calls of each stack in turn, without a return."""
        yield from self._returned.values()
        self._returned.clear()
        for events in self._entered.values():
            yield from events
        self._entered.clear()
        for stack in self._stacks.values():
            yield from _end(stack, 0, time)

    def _with_cpu(
        self, stream: int, stack: CallStack, record: CallRecord
    ) -> Sequence[CallEvent]:
        """Complete a return with its CPU time; handle a different record normally."""
        event = self._returned.pop(stream)
        if record[3] == CallKind.CPU:
            event.cpu_ns = record[0]
            return (event,)
        return (event, *self.feed(stream, record))

    def _with_text(
        self, stream: int, stack: CallStack, record: CallRecord
    ) -> Sequence[CallEvent]:
        """Complete an entry with its values; handle a different record normally."""
        events = self._entered[stream]
        *fields, kind, flags = record
        if kind != CallKind.TEXT:
            del self._entered[stream]
            return (*events, *self.feed(stream, record))
        call = stack.open[-1]
        call.text += _TEXT.pack(*fields)[: flags & CALL_TEXT_SIZE]
        if flags & CALL_TEXT_GOES_ON and len(call.text) < _MAX_TEXT:
            return ()
        del self._entered[stream]
        events[-1].text = call.text
        return events

    def _place(
        self, stream: int, stack: CallStack, record: CallRecord
    ) -> Sequence[CallEvent]:
        time, number, _, kind, _ = record
        if kind == CallKind.STACK:
            self._stacks[stream] = CallStack(number)
            return _end(stack, 0, stack.last)
        if kind == CallKind.PLACE:
            stack.ec, stack.tid = time, number
        else:
            stack.thread = time
            stack.fiber = self._number_of(stack)
        return ()

    def _number_of(self, stack: CallStack) -> int:
        """Return a stack's number in its thread, or in its kernel thread if shared."""
        if len(self._fibers) >= _MAX_THREADS:
            self._fibers.clear()
        key = (stack.tid, 0 if self._shares_natives else stack.thread)
        number = self._fibers[key] = self._fibers.get(key, 0) + 1
        return number


def _enter(
    stack: CallStack, time: int, method: int, depth: int, is_c: bool
) -> list[CallEvent]:
    events: list[CallEvent] = []
    if stack.open:
        if stack.open[-1].depth >= depth:
            events = _end(stack, depth, stack.last)
        if stack.open:
            stack.open[-1].is_leaf = False
    stack.last = time
    stack.open.append(Open(method, depth, time, is_c))
    events.append(CallEvent(_ENTERED, stack, time, method, depth, time, is_c))
    return events


def _leave(stack: CallStack, record: CallRecord) -> list[CallEvent]:
    time, method, depth, kind, flags = record
    event = CallEvent(_RETURNED, stack, time, method, depth, None, kind == _RETURNS[1])
    events: list[CallEvent] = []
    if not flags & CALL_ORPHAN:
        if stack.open and stack.open[-1].depth > depth:
            events = _end(stack, depth + 1, stack.last)
        if stack.open and (last := stack.open[-1]).depth == depth:
            if last.method == method:
                stack.open.pop()
                event.start, event.is_leaf = last.start, last.is_leaf
                event.text = last.text
            else:
                events += _end(stack, depth, stack.last)
        stack.last = time
    events.append(event)
    return events


def _end(stack: CallStack, depth: int, time: int) -> list[CallEvent]:
    """End calls of at least this depth without a return, innermost first."""
    events = []
    while stack.open and stack.open[-1].depth >= depth:
        call = stack.open.pop()
        event = CallEvent(
            CallEventKind.ENDED,
            stack,
            time,
            call.method,
            call.depth,
            call.start,
            call.is_c,
        )
        event.is_leaf, event.text = call.is_leaf, call.text
        events.append(event)
    return events


def _apart(stack: CallStack, record: CallRecord) -> Sequence[CallEvent]:
    """Handle a loss, garbage collection, exception, or object."""
    time, method, depth, kind, _ = record
    depth = min(depth, len(stack.open))
    if kind == CallKind.LOST:
        return (CallEvent(CallEventKind.LOST, stack, time, 0, depth, count=method),)
    if kind == CallKind.GC_BEGIN:
        stack.gc_since = time
    elif kind == CallKind.GC_END:
        since, stack.gc_since = stack.gc_since, None
        if stack.open:
            stack.open[-1].is_leaf = False
        return (CallEvent(CallEventKind.COLLECTED, stack, time, method, depth, since),)
    elif kind == CallKind.RAISE:
        return (CallEvent(CallEventKind.RAISED, stack, time, method, depth),)
    elif kind == CallKind.OBJECT:
        return (CallEvent(CallEventKind.ALLOCATED, stack, time, method, depth),)
    return ()
