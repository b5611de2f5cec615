"""``fork``: a stopped copy of a process, to examine."""

from __future__ import annotations

import sys

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.output import Output, opened
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.inside import fork_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.terminal.inside import fork_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


class _Options(o.AttachOption, o.YesOption, o.JsonOption):
    pass


@target_command("fork", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Fork a stopped copy of a process and print its pid.

    The copy is for a debugger: it has the memory of the process at this moment and
    never runs, while the process itself keeps serving. The copy has only the thread
    that forked it, and keeps files and connections of the process open, locks
    included. Kill it when you are done: kill -KILL.

    The process must have loaded the agent (see `eval --help`). If it has a seccomp
    filter that cannot be read (see `attach --help`), --yes is required.

    \b
    Examples:
      rbtrace-py fork 1234
      gdb -p $(rbtrace-py fork 1234)
    """

    def one(process: Process) -> None:
        with waiting_for([process.pid]) as waiting:
            copy = commands.fork(process, waiting.before(options.confirm))
        with opened(None) as output:
            if options.as_json:
                output.lines([dumps(fork_document(process.pid, copy))])
            else:
                output.lines([str(copy)])
                err = Output(sys.stderr, "standard error")
                err.lines(fork_lines(process.pid, copy))

    return each("fork", targets, words, one, options)
