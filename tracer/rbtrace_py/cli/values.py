"""``values``: how are the values of an operand distributed?"""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, answer
from rbtrace_py.errors import UsageError
from rbtrace_py.report.terminal.results import values_report
from rbtrace_py.session.probes.values import ValuesOf
from rbtrace_py.session.targets.targets import Targets


@click.command("values", options_metavar="[OPTIONS]")
@o.takes_target
@o.grouping_options
@o.json_option
@o.output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Show the distribution of an argument's values.

    Numbers give a histogram with three significant digits; strings, symbols and
    booleans are counted. The argument's name is the last word.

    \b
    Examples:
      rbtrace-py values 1234 order price
      rbtrace-py values 1234 order price --by sku
      rbtrace-py values 1234 order sku --duration 10
    """
    if len(words) < 2:
        raise UsageError(
            "missing arguments: a probe and the name of one of its arguments",
            "`rbtrace-py probes PID` lists both",
        )
    session = ValuesOf(targets, words[:-1], words[-1], o.options_of(values))
    rendering = Rendering(values_report, values["as_json"], values["output"])
    return answer(session, o.limits_of(values), rendering)
