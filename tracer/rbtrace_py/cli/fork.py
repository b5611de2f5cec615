"""``fork``: a stopped copy of a process, to take apart."""

from __future__ import annotations

import sys

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.output import Output, opened
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.results import dumps
from rbtrace_py.report.terminal.inside import fork_document, fork_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


@click.command("fork", options_metavar="[OPTIONS]")
@o.takes_only_target
@o.attach_option
@o.json_option
def command(
    targets: Targets, words: tuple[str, ...], attaches: bool, as_json: bool
) -> int:
    """Make a copy of a process that is stopped, and print its pid.

    The copy has the memory of the process at this moment, for a debugger: the
    process itself serves on. It never runs. It has one thread, that which made
    it, and keeps open what the process had open (connections, locked files), so
    end it when you are done: kill -KILL.

    It needs the agent in the process (`eval --help` says how to load it).

    \b
    Examples:
      rbtrace-py fork 1234
      gdb -p $(rbtrace-py fork 1234)
    """

    def one(process: Process) -> None:
        copy = commands.fork(process)
        with opened(None) as output:
            if as_json:
                output.lines([dumps(fork_document(process.pid, copy))])
            else:
                output.lines([str(copy)])
                err = Output(sys.stderr, "standard error")
                err.lines(fork_lines(process.pid, copy))

    return each("fork", targets, words, one, attaches)
