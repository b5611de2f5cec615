"""``count``: how often do probes fire?"""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.answer import Rendering, answer, need_words
from rbtrace_py.report.results import count_report
from rbtrace_py.session.count import Count
from rbtrace_py.session.targets import Targets


@click.command("count", options_metavar="[OPTIONS]")
@o.takes_target
@o.grouping_options
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Count how often probes fire, in the kernel: nothing is lost at any rate.

    \b
    Examples:
      rbtrace-py count 1234 checkout
      rbtrace-py count 1234 'shop:*' --interval 1
      rbtrace-py count 1234 order --by sku --duration 10
      rbtrace-py count 1234 ruby:cmethod__entry --by method
    """
    need_words(words, "a probe")
    session = Count(targets, words, o.options_of(values))
    rendering = Rendering(count_report, values["as_json"], values["output"])
    return answer(session, o.limits_of(values), rendering)
