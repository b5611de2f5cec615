"""Stacks of method calls, and the events of calls.

Losses and missing returns are events at the point where they occurred.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from rbtrace_py.model.calls import CalledMethod, CallRecord

Thread = tuple[int, int]
"""PID, and kernel thread id in the thread's own PID namespace.

Threads in two containers may have the same thread id.
"""


@dataclass(slots=True, eq=False)
class CallStack:
    """The Ruby stack of a thread or fiber. Times are in ticks.

    Attributes:
        number: Number of the stack; 0 while unknown.
        tid: Kernel thread id in the thread's own PID namespace.
        fiber: 1 for the first stack seen of a thread, 2 for the next, and so on.
        ec: Address of its execution context; 0 if unknown.
        thread: Address of its thread; 0 if unknown.
        open: Records of the entries of calls that have not returned, outermost first.
        leaf: The innermost of them if it made no recorded calls.
        texts: Values of each open call that has some, by depth, as in ``CallEvent``.
        gc_since: Start of the garbage collection in progress.
        last: Time of its last entry or return, which all open calls enclose.
        pid: Process id.
    """

    number: int = 0
    tid: int = 0
    fiber: int = 1
    ec: int = 0
    thread: int = 0
    open: list[CallRecord] = field(default_factory=list)
    leaf: CallRecord | None = None
    texts: dict[int, bytes] = field(default_factory=dict)
    gc_since: int | None = None
    last: int = 0
    pid: int = 0


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
