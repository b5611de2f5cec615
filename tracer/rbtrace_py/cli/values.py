"""``values``: the distribution of an argument's values."""

from __future__ import annotations

from functools import partial

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, answer
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.errors import UsageError
from rbtrace_py.report.terminal.histogram_rows import Scale
from rbtrace_py.report.terminal.results import values_report
from rbtrace_py.session.probes.values import ValuesOf
from rbtrace_py.session.targets.targets import Targets


class _Options(o.GroupingOptions, o.OutputOptions):
    scale: Scale = o.scale_option(after="ready_fd")


@target_command("values", "PID [WORD]...", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
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
            "List both with `rbtrace-py probes PID`",
        )
    session = ValuesOf(targets, words[:-1], words[-1], options.probe_options)
    report = partial(values_report, scale=options.scale)
    rendering = Rendering(report, options.as_json, options.output)
    return answer(session, options.limits, rendering)
