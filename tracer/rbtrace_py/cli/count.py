"""``count``: how often do probes fire?"""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, answer, need_words
from rbtrace_py.report.terminal.results import count_report
from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.targets.targets import Targets


@click.command("count", options_metavar="[OPTIONS]")
@o.takes_target
@o.grouping_options
@m.selecting_options
@m.source_options
@m.top_option
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Count how often probes fire.

    Counting happens in the kernel, without losses at any rate.

    The agent's hook inside the process counts method (calls), object (allocations),
    raise (exceptions) and gc (collections), --by class, method or pid. The process
    must have loaded the agent.

    \b
    Examples:
      rbtrace-py count 1234 checkout
      rbtrace-py count 1234 'shop:*' --interval 1
      rbtrace-py count 1234 order --by sku --duration 10
      rbtrace-py count 1234 object --by class --interval 1
      rbtrace-py count 1234 method --by class --duration 10
      rbtrace-py count 1234 ruby:cmethod__entry --by method
    """
    if not values["selectors"]:
        need_words(words, "a probe")
    source = m.source_of("count", targets, words, values)
    if source.is_agent:
        return m.count(targets, source, values)
    session = Count(targets, source.words, o.options_of(values))
    session.notes += source.notes
    rendering = Rendering(count_report, values["as_json"], values["output"])
    return answer(session, o.limits_of(values), rendering)
