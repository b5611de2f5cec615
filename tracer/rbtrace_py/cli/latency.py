"""``latency``: the distribution of durations."""

from __future__ import annotations

from functools import partial

import click

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import slow_spans as s
from rbtrace_py.cli.common.grouped_report import (
    Rendering,
    Report,
    answer,
    need_words,
)
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.errors import UsageError
from rbtrace_py.report.terminal.histogram_rows import Scale
from rbtrace_py.report.terminal.methods import SORTS, methods_report
from rbtrace_py.report.terminal.results import latency_report
from rbtrace_py.report.units import Unit
from rbtrace_py.session.methods.tables import Methods
from rbtrace_py.session.targets.targets import Targets


class _Options(s.SlowSpanOptions):
    sort: str = option(
        "--sort",
        after="attaches",
        type=click.Choice(SORTS),
        default="total",
        help="Sort order of a table of methods.",
    )
    unit: Unit = o.unit_option(after="top")
    scale: Scale = o.scale_option()
    hlog: str | None = option(
        "--hlog",
        type=WritableFile(),
        help="Write an HdrHistogram log; with --interval, one line per interval.",
    )
    digits: int | None = option(
        "--digits",
        type=click.IntRange(2, 3),
        help="Significant digits of method and gc from the agent; default 2. Probes"
        " always have 3.",
    )


@target_command("latency", "PID [WORD]...", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Measure how long methods, spans or pairs of probes take.

    A WORD is the name of a span; BEGIN..END for any two probes, paired per thread,
    nested pairs included; or gc, gc-pause, gc-mark, gc-sweep, vm-lock, require, load
    or cmethod for Ruby's built-in probes. Histograms are kept in the kernel, with
    three significant digits and without losses at any rate.

    The agent's hook inside the process times method and gc: every call of a Ruby
    method, with recursion and exceptions, as a table of calls, total, self and
    percentiles (--by method, class or pid). These have two significant digits, or
    three with --digits 3. Without the agent, gc comes from Ruby's built-in probes, if
    it has them. Your own probes take precedence; `:gc` always means the built-in.

    --slower-than samples the stacks of slow spans only, on CPU and off, and prints
    the slowest spans with their arguments and where their time went.

    \b
    Examples:
      rbtrace-py latency 1234 checkout
      rbtrace-py latency 1234 checkout --by sku --duration 10
      rbtrace-py latency 1234 shop:order..shop:shipped --hlog out.hlog -i 1
      rbtrace-py latency 1234 request --slower-than 50ms --stacks slow.svg
      rbtrace-py latency 1234 method --duration 10 --sort self
      rbtrace-py latency 1234 -m 'Order#total' -m Cart. --interval 1
      rbtrace-py latency 1234 gc
      rbtrace-py latency checkout -- ruby shop.rb
    """
    if not options.selectors:
        need_words(words, "method, span or pair of probes")
    elif options.sort == "self":
        raise UsageError(
            "--sort self cannot be combined with -m: self time needs all methods",
            "Use --sort total",
        )
    report = partial(latency_report, unit=options.unit, scale=options.scale)
    slow = options.slow
    if slow is not None:
        slow_session = s.slow_session(targets, words, options, slow)
        code = answer(slow_session, options.limits, _rendering(options, report))
        s.write_stacks(slow_session, options)
        s.write_timeline(slow_session, options)
        return code
    session = m.counting_session_of("latency", targets, words, options, options.digits)
    if isinstance(session, Methods):
        report = partial(
            methods_report,
            unit=options.unit,
            scale=options.scale,
            sort=options.sort,
            top=options.top,
            pictures=bool(options.selectors),
        )
    return answer(session, options.limits, _rendering(options, report))


def _rendering(options: _Options, report: Report) -> Rendering:
    return Rendering(report, options.as_json, options.output, options.hlog)
