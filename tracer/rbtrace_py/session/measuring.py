"""Choice of the session for a query: by probes, or by the agent's hook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.agent.arming import DIGITS
from rbtrace_py.errors import UsageError
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.methods.event_source import choose
from rbtrace_py.session.methods.exceptions import ExceptionOptions, Exceptions
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.trace import Trace
from rbtrace_py.session.targets.targets import Targets

_OF_PROBES = {"latency": Latency, "count": Count}


@dataclass(frozen=True, slots=True)
class QuerySource:
    """Options of queries that both probes and the agent can answer.

    Attributes:
        via: ``agent``, ``probes``, or ``auto``.
        selectors: Selectors of methods; empty: all methods.
        c_calls: Include methods written in C.
        backtrace: Include backtraces of exceptions.
        digits: Significant digits of the agent's durations, 2 or 3; None: its default.
    """

    via: str = "auto"
    selectors: Sequence[str] = ()
    c_calls: bool = False
    backtrace: bool = False
    digits: int | None = None


def counting_session(
    command: str,
    targets: Targets,
    words: Sequence[str],
    options: ProbeOptions,
    source: QuerySource,
) -> CountingSession:
    """Return the session for ``latency`` or ``count``, which is not entered yet.

    Args:
        command: ``latency`` or ``count``.
        targets: The processes.
        words: Probes, or words of the agent.
        options: Options of probes.
        source: Options of the choice.

    Raises:
        UsageError, NoAgent: As ``choose`` raises.
    """
    has_methods = bool({"method", ":method"} & set(words))
    selecting = "--c-calls" if source.c_calls and has_methods else ""
    if source.selectors:
        selecting = "-m"
        # With a colon, because a user's probe named method has no selectors.
        words = words if has_methods else (*words, ":method")
    found = choose(
        targets, command, words, source.via, options.wait, selecting, options.by
    )
    if found.is_agent:
        return _methods(command, targets, found.words, options, source)
    if source.digits not in (None, 3):
        raise UsageError(
            f"probes are timed with 3 digits, not {source.digits}",
            "Use --digits only with method and gc, which the agent times",
        )
    session = _OF_PROBES[command](targets, found.words, options)
    session.notes += found.notes
    return session


def _methods(
    command: str,
    targets: Targets,
    words: Sequence[str],
    options: ProbeOptions,
    source: QuerySource,
) -> Methods:
    if options.filter is not None:
        raise UsageError(
            "the agent's hook does not support --filter",
            "Select methods with -m; group them with --by",
        )
    by = options.by
    if by is None and command == "latency" and "method" in words:
        by = "method"
    settings = MethodOptions(
        by=by,
        select=selectors_of(source.selectors, ()),
        c_calls=source.c_calls,
        digits=source.digits or DIGITS,
        wait=options.wait,
        wait_seconds=options.wait_seconds,
        confirm=options.confirm,
    )
    return Methods(targets, command, words, settings)


def tracing_session(
    targets: Targets,
    words: Sequence[str],
    options: ProbeOptions,
    source: QuerySource,
) -> Trace | Exceptions:
    """Return the session for ``trace``, which is not entered yet.

    Raises:
        UsageError, NoAgent: As ``choose`` raises.
    """
    found = choose(targets, "trace", words, source.via, options.wait)
    if found.is_agent:
        return Exceptions(
            targets,
            ExceptionOptions(
                options.string_size,
                source.backtrace,
                options.filter,
                wait=options.wait,
                wait_seconds=options.wait_seconds,
            ),
        )
    if source.backtrace:
        raise UsageError("--backtrace needs `raise` from the agent")
    session = Trace(targets, found.words, options)
    session.notes += found.notes
    return session
