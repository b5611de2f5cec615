"""The common steps of the commands that print groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from rbtrace_py.aggregate.results import Result
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.output import Output, create, is_pipe, opened
from rbtrace_py.cli.common.session_start import attached, enter, say_ended, subject
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.cli.common.ticker import ticker_for
from rbtrace_py.errors import UsageError, loss_exit_code
from rbtrace_py.report.exchange.hlog import HlogWriter
from rbtrace_py.report.json.results import document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.notes import cost_lines, counter_lines
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.drive import drive
from rbtrace_py.session.limits import Limits

Report = Callable[[Result, Style], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Rendering:
    """Renderings of a result.

    Attributes:
        report: Function that returns a result's lines for people.
        hlog: File for HdrHistogram logs.
    """

    report: Report
    as_json: bool = False
    output: str | None = None
    hlog: str | None = None


def answer(session: CountingSession, limits: Limits, rendering: Rendering) -> int:
    """Attach, count, render the result, and return the exit code.

    Args:
        session: Session that measures.
        limits: Limits and interval of the measurement.
        rendering: Renderings of the result.

    Returns:
        5 if too much was lost, or else 0.
    """
    with ExitStack() as stack:
        # Overwrite a file only after attaching succeeded.
        enter(stack, session, subject(session))
        output = stack.enter_context(opened(rendering.output))
        hlog = _hlog(stack, session, rendering.hlog)
        stop = stack.enter_context(Stop())
        attached(session)
        ticker = ticker_for(session, f"measuring {subject(session)}")

        def interval() -> None:
            ticker.clear()
            result = session.take_interval()
            if hlog is not None:
                hlog.write(result)
            output.lines(_interval_lines(result, rendering, output.style))

        drive(session, limits, stop.is_asked, ticker, interval)
        ticker.end()
        if session.is_over:
            say_ended(session.targets)
        whole = session.snapshot()
        if not limits.interval:
            if hlog is not None:
                hlog.write(whole)
            try:
                output.lines(_lines(whole, rendering, output))
            finally:
                _tell_losses(whole, rendering, output)
        elif not rendering.as_json:
            for line in cost_lines(whole.cost, Style.for_stream(sys.stderr)):
                say_note(line.strip())
    if session.hint:
        say_note(session.hint)
    return loss_exit_code(whole.count, whole.lost)


def _lines(result: Result, rendering: Rendering, output: Output) -> Iterable[str]:
    if rendering.as_json:
        return [dumps(document(result))]
    return rendering.report(result, output.style)


def _tell_losses(whole: Result, rendering: Rendering, output: Output) -> None:
    """Print losses also to standard error if the report goes into a pipe.

    ``| head`` may cut the report.
    """
    if rendering.as_json or not is_pipe(output.stream):
        return
    for line in counter_lines(
        whole.losses, Style.for_stream(sys.stderr), says_none=False
    ):
        say_note(line.strip())


def _interval_lines(
    result: Result, rendering: Rendering, style: Style
) -> Iterable[str]:
    if rendering.as_json:
        return [dumps(document(result))]
    clock = datetime.fromtimestamp(result.ended_ns / 1e9).strftime("%H:%M:%S")
    return [style.bold(clock), *rendering.report(result, style)]


def _hlog(
    stack: ExitStack, session: CountingSession, path: str | None
) -> HlogWriter | None:
    if path is None:
        return None
    file = stack.enter_context(create(path, "ascii"))
    return HlogWriter(file, session.started_ns)


def need_words(words: tuple[str, ...], what: str) -> None:
    if not words:
        raise UsageError(
            f"missing argument: {what}", "List the probes with `rbtrace-py probes PID`"
        )
