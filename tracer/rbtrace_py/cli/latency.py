"""``latency``: how long does it take?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, answer, need_words
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.report.terminal.results import latency_report
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.targets.targets import Targets


@click.command("latency", options_metavar="[OPTIONS]")
@o.takes_target
@o.grouping_options
@m.selecting_options
@m.source_options
@m.sort_option
@m.top_option
@o.unit_option
@click.option(
    "--hlog",
    type=WritableFile(),
    help="Write a HdrHistogram log, with --interval a line an interval.",
)
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Measure how long methods, spans or pairs of probes take.

    A span by its name; any two probes as BEGIN..END, timed on each thread and
    nested as they nest; and of Ruby's own probes gc, gc-mark, gc-sweep, gvl,
    require, load and cmethod. Kept in the kernel to three significant digits:
    nothing is lost at any rate.

    method, and gc, are timed by the agent's hook inside the process, where it
    has loaded the agent: every call of a Ruby method, with recursion and
    exceptions, as a table of calls, total, self and percentiles (--by method,
    class or pid). What a user's probe is called goes before: :gc is not one.

    \b
    Examples:
      rbtrace-py latency 1234 checkout
      rbtrace-py latency 1234 checkout --by sku --duration 10
      rbtrace-py latency 1234 shop:order..shop:shipped --hlog out.hlog -i 1
      rbtrace-py latency 1234 method --duration 10 --sort self
      rbtrace-py latency 1234 -m 'Order#total' -m Cart. --interval 1
      rbtrace-py latency 1234 gc
      rbtrace-py latency checkout -- ruby shop.rb
    """
    if not values["selectors"]:
        need_words(words, "method, a span or a pair of probes")
    source = m.source_of("latency", targets, words, values)
    if source.is_agent:
        return m.latency(targets, source, values)
    session = Latency(targets, source.words, o.options_of(values))
    session.notes += source.notes
    report = partial(latency_report, unit=values["unit"])
    rendering = Rendering(report, values["as_json"], values["output"], values["hlog"])
    return answer(session, o.limits_of(values), rendering)
