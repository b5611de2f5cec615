"""Measurements that end with a result: latency, count, values, methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar, cast, overload

from rbtrace_py.aggregate.methods import MethodResult
from rbtrace_py.aggregate.results import Result
from rbtrace_py.errors import UsageError
from rbtrace_py.library.targets import Pids, Subject
from rbtrace_py.linux.closing import Closing
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.drive import drive, turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.measuring import QuerySource, counting_session
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.values import ValuesOf
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R", bound=Result)


class ProcessKeywords(TypedDict, total=False):
    """Keyword arguments of all functions that attach.

    Attributes:
        subprocesses: Include child processes, also those that start later.
        yes: Accept actions that are irreversible or can harm the process. Otherwise,
            such an action raises ``NotConfirmed``, which names it.
        wait: Seconds to wait for a missing probe or agent; ``math.inf`` for no limit.
    """

    subprocesses: bool
    yes: bool
    wait: float


class AgentKeywords(ProcessKeywords, total=False):
    """Keyword arguments of functions that can use the agent in a process.

    Attributes:
        attach: Load the agent into a process that lacks it. The agent stays there, with
            a sleeping thread and a socket, until the process ends.
    """

    attach: bool


class ProbeKeywords(ProcessKeywords, total=False):
    """Keyword arguments of ``values``.

    Attributes:
        by: Group by this argument of the probes, or by ``pid`` or ``tid``.
        filter: Condition on events: ``'id > 10 and sku == "tea"'``.
        max_keys: Maximum number of groups. The rest is one group, whose ``is_other`` is
            true.
    """

    by: str | None
    filter: str | None
    max_keys: int


class EventKeywords(ProbeKeywords, AgentKeywords, total=False):
    """Keyword arguments of ``latency`` and ``count``.

    Attributes:
        via: Event source for methods, gc, raise, and objects: ``agent``, ``probes``
            (Ruby's built-in ones), or ``auto``.
    """

    via: str


class MethodKeywords(AgentKeywords, total=False):
    """Keyword arguments of ``methods``.

    Attributes:
        by: Group by ``method`` (the default), ``class``, or ``pid``.
        c_calls: Include methods written in C. The process stays slower afterwards.
        digits: Significant digits of percentiles, 2 (the default) or 3.
    """

    by: str
    c_calls: bool
    digits: int


@dataclass(frozen=True, slots=True)
class _Query:
    """All keyword arguments with their defaults."""

    subprocesses: bool = False
    attach: bool = False
    yes: bool = False
    wait: float = 0.0
    by: str | None = None
    filter: str | None = None
    max_keys: int = 1000
    via: str = "auto"
    c_calls: bool = False
    digits: int | None = None

    def subject(self, pids: Pids) -> Subject:
        return Subject(pids, self.subprocesses, self.attach, self.yes, self.wait)

    def probe_options(self, subject: Subject) -> ProbeOptions:
        return ProbeOptions(
            by=self.by,
            filter=self.filter,
            max_keys=self.max_keys,
            wait=subject.wait > 0,
            wait_seconds=subject.wait_seconds,
            confirm=subject.confirm,
        )


class Measurement(Closing, Generic[R]):
    """A measurement that runs until its ``with`` block ends.

    Entering the block attaches, and leaving it detaches. ``latency``, ``count``,
    ``values``, and ``methods`` return a measurement if they are called without
    ``seconds``. Use it from one thread.
    """

    def __init__(
        self, subject: Subject, make: Callable[[Targets], CountingSession]
    ) -> None:
        self._subject = subject
        self._make = make
        self._stack = ExitStack()
        self._session: CountingSession | None = None
        self._result: R | None = None

    def __enter__(self) -> Measurement[R]:
        if self._session is not None:
            raise UsageError("a measurement can be entered only once", "Create another")
        with ExitStack() as stack:
            targets = stack.enter_context(self._subject.opened())
            self._session = stack.enter_context(self._make(targets))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, one per line."""
        return () if self._session is None else tuple(self._session.notes)

    def result(self) -> R:
        """Return the result so far, or after the end the complete result.

        Raises:
            UsageError: The measurement has not begun.
        """
        if self._result is not None:
            return self._result
        session = self._begun()
        session.refresh()
        return cast(R, session.snapshot())

    def run(self, seconds: float | None = None, count: int | None = None) -> R:
        """Wait, detach, and return the result.

        Args:
            seconds: Stop after this many seconds.
            count: Stop soon after this many events. Without either, it stops when all
                processes have ended.
        """
        if self._result is None:
            drive(self._begun(), Limits(seconds, count))
        return self._finish()

    def intervals(self, every: float, seconds: float | None = None) -> Iterator[R]:
        """Yield one result per interval.

        Args:
            every: Length of an interval in seconds.
            seconds: Stop after this many seconds; the last interval may be shorter.
                Without it, iteration stops after the interval in which all processes
                have ended.
        """
        session = self._begun()
        found: list[R] = []

        def end_interval() -> None:
            found.append(cast(R, session.take_interval()))

        limits = Limits(seconds, interval=every)
        for _ in turns(session, limits, on_interval=end_interval):
            while found:
                yield found.pop(0)
        self._finish()

    def close(self) -> None:
        """Detach without a result. A second call does nothing."""
        self._stack.close()

    def _begun(self) -> CountingSession:
        if self._session is None:
            raise UsageError("the measurement has not begun", "Use a `with` statement")
        return self._session

    def _finish(self) -> R:
        if self._result is None:
            session = self._begun()
            session.finish()
            self._result = cast(R, session.snapshot())
        return self._result


def _answer(measurement: Measurement[R], seconds: float | None) -> R | Measurement[R]:
    """Return the result after ``seconds``, or without it the measurement itself."""
    if seconds is None:
        return measurement
    with measurement:
        return measurement.run(seconds)


def _counting(
    command: str,
    pids: Pids,
    words: tuple[str, ...],
    query: _Query,
    selectors: tuple[str, ...] = (),
) -> Measurement[R]:
    subject = query.subject(pids)
    source = QuerySource(query.via, selectors, query.c_calls, digits=query.digits)

    def make(targets: Targets) -> CountingSession:
        options = query.probe_options(subject)
        return counting_session(command, targets, words, options, source)

    return Measurement(subject, make)


@overload
def latency(
    pids: Pids, *words: str, seconds: float, **options: Unpack[EventKeywords]
) -> Result: ...
@overload
def latency(
    pids: Pids, *words: str, seconds: None = None, **options: Unpack[EventKeywords]
) -> Measurement[Result]: ...
def latency(
    pids: Pids,
    *words: str,
    seconds: float | None = None,
    **options: Unpack[EventKeywords],
) -> Result | Measurement[Result]:
    """Measure the duration of spans, pairs of probes, methods, or collections.

    With ``seconds``, the call blocks and returns the result. Without it, the call
    returns a measurement to use in ``with``. All times are in nanoseconds. The kernel
    keeps the histograms, with three significant digits, so no event is lost at any
    rate. For methods and for collections reported by the agent, the process keeps the
    histograms, with two digits.

    Args:
        pids: One process or several.
        *words: Names of spans, ``BEGIN..END`` for a pair of probes, ``gc``,
            ``gc-pause``, ``vm-lock``, ``require``, ``load``, ``cmethod``, or
            ``method``.
        seconds: Measurement time in seconds.
        **options: ``by``, ``filter``, ``max_keys``, ``via``, ``wait``,
            ``subprocesses``, ``attach``, ``yes``: see ``EventKeywords``.

    Returns:
        A ``Result`` with a ``Group`` for each series and key.

    Raises:
        NoSuchTarget: A process does not exist, or lacks a required agent.
        NoSuchProbe: A word matches no probe.
        NotPermitted: The kernel denies permission. The hint says what is missing.
        NotConfirmed: The measurement requires ``yes=True``.
        UsageError: The words or options cannot be combined.
    """
    return _answer(_counting("latency", pids, words, _Query(**options)), seconds)


@overload
def count(
    pids: Pids, *words: str, seconds: float, **options: Unpack[EventKeywords]
) -> Result: ...
@overload
def count(
    pids: Pids, *words: str, seconds: None = None, **options: Unpack[EventKeywords]
) -> Measurement[Result]: ...
def count(
    pids: Pids,
    *words: str,
    seconds: float | None = None,
    **options: Unpack[EventKeywords],
) -> Result | Measurement[Result]:
    """Count probe events, method calls, or allocated objects.

    Args:
        pids: One process or several.
        *words: Names of probes, globs, ``method``, ``object``, ``raise``, or ``gc``.
        seconds: Measurement time in seconds. Without it, the return value is a
            measurement to use in ``with``.
        **options: See ``latency``.

    Returns:
        A ``Result`` whose groups have a ``count`` and no histogram.

    Raises:
        RbtraceError: See ``latency``.
    """
    return _answer(_counting("count", pids, words, _Query(**options)), seconds)


@overload
def values(
    pids: Pids,
    *words: str,
    argument: str,
    seconds: float,
    **options: Unpack[ProbeKeywords],
) -> Result: ...
@overload
def values(
    pids: Pids,
    *words: str,
    argument: str,
    seconds: None = None,
    **options: Unpack[ProbeKeywords],
) -> Measurement[Result]: ...
def values(
    pids: Pids,
    *words: str,
    argument: str,
    seconds: float | None = None,
    **options: Unpack[ProbeKeywords],
) -> Result | Measurement[Result]:
    """Measure the distribution of an argument's values.

    Numbers give a histogram with three significant digits. Strings, symbols, and
    booleans are counted: each value is the ``key`` of a group.

    Args:
        pids: One process or several.
        *words: Names of probes.
        argument: Name of an argument of these probes.
        seconds: Measurement time in seconds. Without it, the return value is a
            measurement to use in ``with``.
        **options: ``by``, ``filter``, ``max_keys``, ``wait``, ``subprocesses``,
            ``yes``: see ``ProbeKeywords``.

    Returns:
        A ``Result``. Its ``unit`` is the argument's type, or ``ns`` for a duration.

    Raises:
        RbtraceError: See ``latency``.
    """
    query = _Query(**options)
    subject = query.subject(pids)

    def make(targets: Targets) -> CountingSession:
        return ValuesOf(targets, words, argument, query.probe_options(subject))

    return _answer(Measurement[Result](subject, make), seconds)


@overload
def methods(
    pids: Pids, *selectors: str, seconds: float, **options: Unpack[MethodKeywords]
) -> MethodResult: ...
@overload
def methods(
    pids: Pids,
    *selectors: str,
    seconds: None = None,
    **options: Unpack[MethodKeywords],
) -> Measurement[MethodResult]: ...
def methods(
    pids: Pids,
    *selectors: str,
    seconds: float | None = None,
    **options: Unpack[MethodKeywords],
) -> MethodResult | Measurement[MethodResult]:
    """Measure the calls, total time, self time, and histogram of each Ruby method.

    The agent's hook counts inside the process, so the process must have loaded the
    agent, or ``attach=True`` loads it. All times are in nanoseconds.

    Args:
        pids: One process or several.
        *selectors: Methods to measure: ``total``, ``Order#total``, ``Order.find``,
            ``Order#``, ``Order.``. Without selectors, every method is measured.
        seconds: Measurement time in seconds. Without it, the return value is a
            measurement to use in ``with``.
        **options: ``by``, ``c_calls``, ``digits``, ``wait``, ``subprocesses``,
            ``attach``, ``yes``: see ``MethodKeywords``.

    Returns:
        A ``MethodResult``, whose groups are ``MethodGroup``s.

    Raises:
        RbtraceError: See ``latency``.
    """
    query = _Query(**options, via="agent")
    measurement: Measurement[MethodResult]
    measurement = _counting("latency", pids, (":method",), query, selectors)
    return _answer(measurement, seconds)
