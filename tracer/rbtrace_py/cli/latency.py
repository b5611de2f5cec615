"""``latency``: how long does it take?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.answer import Rendering, answer, need_words
from rbtrace_py.report.results import latency_report
from rbtrace_py.session.latency import Latency
from rbtrace_py.session.targets import Targets


@click.command("latency", options_metavar="[OPTIONS]")
@o.takes_target
@o.grouping_options
@o.unit_option
@click.option(
    "--hlog",
    type=click.Path(dir_okay=False, writable=True),
    help="Write a HdrHistogram log, with --interval a line an interval.",
)
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Measure how long spans or pairs of probes take.

    A span by its name; any two probes as BEGIN..END, timed on each thread and
    nested as they nest; and of Ruby's own probes gc, gc-mark, gc-sweep,
    require, load and cmethod. Kept in the kernel to three significant digits:
    nothing is lost at any rate.

    \b
    Examples:
      rbtrace-py latency 1234 checkout
      rbtrace-py latency 1234 checkout --by sku --duration 10
      rbtrace-py latency 1234 shop:order..shop:shipped --hlog out.hlog -i 1
      rbtrace-py latency 1234 gc
      rbtrace-py latency checkout -- ruby shop.rb
    """
    need_words(words, "a span or a pair of probes")
    session = Latency(targets, words, o.options_of(values))
    report = partial(latency_report, unit=values["unit"])
    rendering = Rendering(report, values["as_json"], values["output"], values["hlog"])
    return answer(session, o.limits_of(values), rendering)
