"""``count``: numbers of events, calls, or objects."""

from __future__ import annotations

from functools import partial

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common.grouped_report import Rendering, answer, need_words
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.report.terminal.methods import counts_report
from rbtrace_py.report.terminal.results import count_report
from rbtrace_py.session.methods.tables import Methods
from rbtrace_py.session.targets.targets import Targets


@target_command("count", "PID [WORD]...", m.TableOptions)
def command(targets: Targets, words: tuple[str, ...], options: m.TableOptions) -> int:
    """Count how often probes fire.

    Counting happens in the kernel, without losses at any rate.

    The agent's hook inside the process counts method (calls), object (allocations),
    raise (exceptions) and gc (GC pauses), --by class, method or pid. Without the
    agent, all but method come from Ruby's built-in probes, if it has them.

    \b
    Examples:
      rbtrace-py count 1234 checkout
      rbtrace-py count 1234 'shop:*' --interval 1
      rbtrace-py count 1234 order --by sku --duration 10
      rbtrace-py count 1234 object --by class --interval 1
      rbtrace-py count 1234 method --by class --duration 10
      rbtrace-py count 1234 ruby:cmethod__entry --by method
    """
    if not options.selectors:
        need_words(words, "a probe")
    session = m.counting_session_of("count", targets, words, options)
    by_methods = partial(counts_report, top=options.top)
    report = by_methods if isinstance(session, Methods) else count_report
    rendering = Rendering(report, options.as_json, options.output)
    return answer(session, options.limits, rendering)
