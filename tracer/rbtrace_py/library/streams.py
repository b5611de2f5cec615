"""Streams of events as they happen: ``trace`` and ``calls``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread
from rbtrace_py.aggregate.results import LOSSES
from rbtrace_py.errors import UsageError
from rbtrace_py.library.measuring import AgentKeywords
from rbtrace_py.library.targets import Pids, Subject
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.calls import MethodKind
from rbtrace_py.model.events import Event
from rbtrace_py.session.event_session import EventSession, event_turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.measuring import QuerySource, tracing_session
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.exceptions import Exceptions
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.trace import Trace
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

E = TypeVar("E")
_ENDS = (CallEventKind.RETURNED, CallEventKind.ENDED, CallEventKind.COLLECTED)


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A call of a method, as it ended.

    Attributes:
        name: ``Order#total``, ``Order.find``, or ``garbage_collect`` for a collection.
        pid: Process ID, as the tracer sees it.
        tid: Kernel thread ID, as the process sees it.
        thread: Name of the thread; empty if it has none.
        fiber: 1 for the first stack of a thread, 2 for the next.
        depth: Number of enclosing recorded calls.
        start_ns: Start time in ns since 1970 (``CLOCK_REALTIME``).
        duration_ns: Duration in ns. None if its return was not seen.
        cpu_ns: CPU time of the thread during the call, in ns, if ``slow_cpu`` is used.
        values: Expressions of its selector, and their values when the call began.
        path, line: Location of the method's definition; None if unknown.
        is_c: True if the method is written in C.
    """

    name: str
    pid: int
    tid: int
    thread: str
    fiber: int
    depth: int
    start_ns: int
    duration_ns: int | None
    cpu_ns: int | None
    values: Mapping[str, str]
    path: str | None
    line: int | None
    is_c: bool


def method_calls(
    events: Iterable[ReportedCall], names: Mapping[Thread, str]
) -> Iterator[MethodCall]:
    """Yield each call whose beginning was seen, as it ends.

    Args:
        events: Events of calls. Entries, losses, and exceptions are skipped.
        names: Names of threads.
    """
    for reported in events:
        call = _method_call(reported, names)
        if call is not None:
            yield call


def _method_call(
    reported: ReportedCall, names: Mapping[Thread, str]
) -> MethodCall | None:
    event, method = reported.event, reported.method
    if event.what not in _ENDS or event.start is None:
        return None
    has_ended = event.what is not CallEventKind.ENDED
    return MethodCall(
        method.full_name,
        reported.pid,
        event.stack.tid,
        names.get(reported.thread, ""),
        event.stack.fiber,
        event.depth,
        event.start,
        event.duration if has_ended else None,
        event.cpu_ns,
        dict(reported.values),
        method.path,
        method.line,
        method.kind is MethodKind.C,
    )


class _NamedCalls(Calls):
    """A session of calls that also learns the names of new threads."""

    def refresh(self) -> None:
        super().refresh()
        self.ask_threads()


class EventStream(Closing, Generic[E]):
    """Stream of events of processes. Iterate over it, inside ``with`` or without.

    In ``with``, entering attaches and leaving detaches. Without, the loop does both: it
    detaches at its end, at ``break``, and at an exception, Ctrl-C included. Events wait
    in a buffer until the loop reads them. If the buffer is full, new events are lost,
    and ``losses`` counts them. Use the stream from one thread.
    """

    def __init__(
        self,
        subject: Subject,
        limits: Limits,
        make: Callable[[Targets, Callable[[E], int]], EventSession[Any]],
    ) -> None:
        """Prepare a stream.

        Args:
            subject: The processes.
            limits: Limits of the stream.
            make: Returns a session that passes events to the given sink.
        """
        self._subject = subject
        self._limits = limits
        self._make = make
        self._stack = ExitStack()
        self._session: EventSession[Any] | None = None
        self._taken: deque[E] = deque()
        self._has_ended = False
        self._counters: dict[str, int] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, one per line. More notes may follow until the end."""
        return () if self._session is None else tuple(self._session.notes)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events that are not in the stream, by name (docs/formats)."""
        if self._has_ended or self._session is None:
            return dict(self._counters)
        return self._session.result_counters()

    @property
    def losses(self) -> dict[str, int]:
        """Numbers of lost events by name; empty if none were lost.

        For ``calls``, losses are known only at the end.
        """
        found = self.counters
        return {name: found[name] for name in LOSSES if found.get(name)}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            targets = stack.enter_context(self._subject.opened())
            self._session = stack.enter_context(self._make(targets, self._take))
            self._stack = stack.pop_all()
        return self

    def __iter__(self) -> Iterator[E]:
        if self._session is not None:
            yield from self._events()
            return
        with self:
            yield from self._events()

    def close(self) -> None:
        """Detach, and discard events that were not read."""
        try:
            self._end()
        finally:
            self._stack.close()

    def _events(self) -> Iterator[E]:
        session, limits = self._session, self._limits
        if self._has_ended or session is None:
            return
        for _ in event_turns(session, limits):
            while self._taken:
                yield self._taken.popleft()
        if session.failure is not None and session.seen != limits.count:
            raise session.failure
        self._end()

    def _take(self, event: E) -> int:
        self._taken.append(event)
        return 1

    def _end(self) -> None:
        if self._session is not None and not self._has_ended:
            self._session.drop(is_lost=False)
            self._counters = self._session.result_counters()
            self._has_ended = True


def trace(
    pids: Pids,
    *words: str,
    seconds: float | None = None,
    count: int | None = None,
    filter: str | None = None,  # noqa: A002 -- the option's name
    string_size: int = 128,
    backtrace: bool = False,
    via: str = "auto",
    **options: Unpack[AgentKeywords],
) -> EventStream[Event]:
    """Trace each event of probes, with its arguments, or each exception.

    Iterate over the return value. Each event has ``name``, ``time_ns`` (since 1970),
    ``pid``, ``tid``, and ``arguments``, a dict.

    Args:
        pids: One process or several.
        *words: Names of probes, globs, or ``raise`` for every exception.
        seconds: Stop after this many seconds.
        count: Stop after this many events.
        filter: Condition on events: ``'id > 10 and sku == "tea"'``.
        string_size: Maximum number of bytes to read of each string.
        backtrace: Include a ``backtrace`` in exceptions (``RaiseEvent``).
        via: Event source of ``raise``: ``agent``, ``probes``, or ``auto``.
        **options: ``wait``, ``subprocesses``, ``attach``, ``yes``: see
            ``AgentKeywords``.

    Returns:
        A stream of ``Event``s, in the order in which the kernel saw them.

    Raises:
        RbtraceError: See ``latency``. The error is raised when the iteration begins.
    """
    subject = Subject(pids, **options)
    settings = ProbeOptions(
        filter=filter,
        wait=subject.wait > 0,
        wait_seconds=subject.wait_seconds,
        confirm=subject.confirm,
        string_size=string_size,
    )
    source = QuerySource(via, backtrace=backtrace)

    def make(targets: Targets, take: Callable[[Event], int]) -> Trace | Exceptions:
        session = tracing_session(targets, words, settings, source)
        session.sink = take
        return session

    return EventStream(subject, Limits(seconds, count), make)


def calls(
    pids: Pids,
    *selectors: str,
    seconds: float | None = None,
    count: int | None = None,
    slow: float | None = None,
    slow_cpu: float | None = None,
    gc: bool = False,
    c_calls: bool = False,
    sets: Sequence[str] = (),
    **options: Unpack[AgentKeywords],
) -> EventStream[MethodCall]:
    """Trace each call of Ruby methods, when it returns.

    Iterate over the return value. Inner calls precede the call around them. The process
    must have loaded the agent, or ``attach=True`` loads it.

    Args:
        pids: One process or several.
        *selectors: Methods to trace: ``total``, ``Order#total``, ``Order.find``,
            ``Order#``, ``Order.``. Expressions in parentheses add their values when the
            call begins: ``Order#add(self, item)``. Without selectors, every method is
            traced.
        seconds: Stop after this many seconds.
        count: Stop after this many calls.
        slow: Minimum duration of a call in seconds.
        slow_cpu: Minimum CPU time of a call's thread in seconds.
        gc: Include garbage collections.
        c_calls: Include methods written in C. The process stays slower afterwards.
        sets: Names of predefined sets of methods, or files with one selector per line.
        **options: ``wait``, ``subprocesses``, ``attach``, ``yes``: see
            ``AgentKeywords``.

    Returns:
        A stream of ``MethodCall``s. Its ``losses`` are known at its end.

    Raises:
        RbtraceError: See ``latency``. The error is raised when the iteration begins.
    """
    if slow is not None and slow_cpu is not None:
        raise UsageError("slow and slow_cpu cannot be combined")
    subject = Subject(pids, **options)
    least = slow if slow_cpu is None else slow_cpu
    settings = CallsOptions(
        select=selectors_of(selectors, sets, shows_values=True),
        c_calls=c_calls,
        gc=gc,
        slow_ns=None if least is None else max(1, round(least * 1e9)),
        cpu=slow_cpu is not None,
        confirm=subject.confirm,
        wait=subject.wait > 0,
        wait_seconds=subject.wait_seconds,
    )

    def make(targets: Targets, take: Callable[[MethodCall], int]) -> Calls:
        session = _NamedCalls(targets, settings)

        def sink(reported: ReportedCall) -> int:
            call = _method_call(reported, session.thread_names)
            return 0 if call is None else take(call)

        session.sink = sink
        return session

    return EventStream(subject, Limits(seconds, count), make)
