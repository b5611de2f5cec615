"""``backtraces``: the backtrace of every thread, as Ruby itself reports it."""

from __future__ import annotations

from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.per_process import AgentReportOptions, check_words, show
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import ThreadBacktrace
from rbtrace_py.report.json.inside import backtraces_document
from rbtrace_py.report.terminal.inside import backtrace_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


class _Options(AgentReportOptions):
    agent: bool = option("--agent", help="Include the agent's own threads.")


@target_command("backtraces", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> None:
    """Print every thread's backtrace as Ruby reports it.

    The agent in the process answers (see `eval --help` for how to load it). `dump`
    needs no agent, and also shows fibers, C functions and states.

    \b
    Examples:
      rbtrace-py backtraces 1234
      rbtrace-py backtraces 1234 --json
    """

    def threads(process: Process) -> list[ThreadBacktrace]:
        found = commands.backtraces(process)
        return [one for one in found if options.agent or not one.is_agent]

    check_words("backtraces", targets, words)
    show(targets, options, threads, backtraces_document, backtrace_lines)
