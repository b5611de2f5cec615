"""``memory``: what a process has in its heap, and what the kernel gave it."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.per_process import AgentReportOptions, check_words, show
from rbtrace_py.report.terminal.inside import memory_document, memory_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


@click.command("memory", options_metavar="[OPTIONS]")
@o.takes("PID", AgentReportOptions)
@o.attach_option
@o.output_options
def command(
    targets: Targets, words: tuple[str, ...], options: AgentReportOptions
) -> None:
    """Show a process's memory: resident size, Ruby objects, GC.stat.

    The agent in the process answers (see `eval --help` for how to load it).
    Counting objects walks the heap, which pauses the program: about 20 ms per
    million objects.

    \b
    Examples:
      rbtrace-py memory 1234
      rbtrace-py memory 1234 --json
    """
    check_words("memory", targets, words)
    show(targets, options, commands.memory, memory_document, memory_lines)
