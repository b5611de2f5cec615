"""``trace``: every event of probes, one per line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import click

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import need_words
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.output import Output, opened
from rbtrace_py.cli.common.selecting import attach_first
from rbtrace_py.cli.common.session_start import attached, enter, say_ended, subject
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.ticker import QuietTicker
from rbtrace_py.errors import loss_exit_code
from rbtrace_py.model.events import Event
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.json.trace import event_document, trace_end_document
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.events import (
    FIELDS,
    Template,
    backtrace_lines,
    event_line,
)
from rbtrace_py.report.terminal.notes import cost_lines, counter_lines
from rbtrace_py.report.units import Unit, format_count
from rbtrace_py.session.event_session import event_turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.measuring import QuerySource, tracing_session
from rbtrace_py.session.methods.exceptions import Exceptions
from rbtrace_py.session.probes.trace import Trace
from rbtrace_py.session.targets.targets import Targets

Line = Callable[[Event], str]
Tracing = Trace | Exceptions


class _Options(o.EventOptions, m.SourceOptions, o.OutputOptions):
    unit: Unit = o.unit_option(after="ready_fd")
    template: str | None = option(
        "--template",
        metavar="TEXT",
        help="Format of each line. Fields in braces: "
        + ", ".join(FIELDS)
        + " and names of arguments.",
    )
    string_size: int = option(
        "--string-size",
        type=click.IntRange(8, 4096),
        default=128,
        help="Bytes to show of each string.",
    )
    backtrace: bool = option(
        "--backtrace", help="Print the backtrace of each exception (raise)."
    )


@target_command("trace", "PID [WORD]...", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Print each probe event: time, thread, probe, arguments.

    With several processes, threads are shown as PID/TID.

    raise is every exception, with message and place if the process has loaded the
    agent, without a message if Ruby's built-in probe reports it.

    Events that arrive faster than they can be written are lost and counted; the
    count is shown at the end. The exit code is 5 if more events were lost than
    shown.

    \b
    Examples:
      rbtrace-py trace 1234 checkout
      rbtrace-py trace 1234 'shop:*' --count 20
      rbtrace-py trace 1234 order --filter 'price > 100' --json
      rbtrace-py trace 1234 raise --backtrace
      rbtrace-py trace 1234 raise --filter 'class ^= "Gateway::"'
      rbtrace-py trace 1234 order --template '{time} {tid} {id} {sku}'
    """
    need_words(words, "a probe")
    session = _session(targets, words, options)
    with ExitStack() as stack:
        enter(stack, session, subject(session))
        output = stack.enter_context(opened(options.output))
        line = _line(session, output, options)
        stop = stack.enter_context(Stop())
        attached(session)
        _print(session, output, line, options.limits, stop)
        if session.is_over:
            say_ended(targets)
        code = _end(session, output, options.as_json)
        if session.failure is not None:
            raise session.failure
        return code


def _session(targets: Targets, words: tuple[str, ...], options: _Options) -> Tracing:
    attach_first(targets, options)
    settings = replace(options.probe_options, string_size=options.string_size)
    source = QuerySource(options.via, backtrace=options.backtrace)
    return tracing_session(targets, words, settings, source)


def _line(session: Tracing, output: Output, options: _Options) -> Line:
    if options.as_json:
        return lambda event: dumps(event_document(event))
    style, unit = output.style, options.unit
    if options.template is not None:
        template = Template(options.template, session.probes)
        return _with_backtrace(lambda e: template.line(e, style, unit), style)
    several = not session.targets.is_single
    return _with_backtrace(lambda e: event_line(e, style, unit, several), style)


def _with_backtrace(line: Line, style: Style) -> Line:
    return lambda event: "\n".join([line(event), *backtrace_lines(event, style)])


def _print(
    session: Tracing, output: Output, line: Line, limits: Limits, stop: Stop
) -> None:
    """Print each event. If there was none for a while, a status line says so."""
    ticker = QuietTicker(f"waiting for {subject(session)}")
    if session.targets.command is not None:
        ticker.mute()

    def write(event: Event) -> int:
        output.write(line(event) + "\n")
        return 1

    session.sink = ticker.before(write)
    for _ in event_turns(session, limits, stop.is_asked, ticker.tick):
        output.flush()
    ticker.end()


def _end(session: Tracing, output: Output, as_json: bool) -> int:
    """Print the summary to standard error, or as the last JSON line."""
    shown = session.seen
    counters = session.result_counters()
    rest = {name: number for name, number in counters.items() if name != "seen"}
    cost = session.cost if isinstance(session, Trace) else None
    if as_json:
        output.lines([dumps(trace_end_document(shown, rest, cost))])
    else:
        events = "1 event" if shown == 1 else f"{format_count(shown)} events"
        click.echo(events, err=True)
        style = Style.for_stream(sys.stderr)
        for text in (*counter_lines(rest, style), *cost_lines(cost, style)):
            click.echo(text, err=True)
    return loss_exit_code(shown, counters["lost"])
