"""``attach``: the agent put into a process that never loaded it."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.results import dumps
from rbtrace_py.report.terminal.attach import attached_document, attached_lines
from rbtrace_py.session.inside import attach
from rbtrace_py.session.targets.targets import Targets


@click.command("attach", options_metavar="[OPTIONS]")
@o.takes_only_target
@o.time_limit_option(attach.ATTACH_SECONDS, attach.MOST_SECONDS)
@click.option(
    "--no-hook",
    is_flag=True,
    help="Without method events; needs no C compiler here.",
)
@o.json_option
def command(
    targets: Targets,
    words: tuple[str, ...],
    time_limit: float,
    no_hook: bool,
    as_json: bool,
) -> int:
    """Put the agent into a Ruby process that did not load it.

    The main thread is stopped for about a millisecond (longer where it has to
    wait for a processor; the time is printed), and led through a function of
    Ruby's that has a line of code run at the next safe moment: a new thread,
    which loads the agent from files that are gone a moment later. The process
    then has what `require "tracepoint/agent"` gives: a sleeping thread and a
    socket for those who may attach to it. Programs that Ruby forks
    later have it too. It stays until the process ends, or until `detach`.

    Nothing is done to a process that this could harm: one that is traced or
    stopped, whose filter of system calls (seccomp) forbids what is needed or
    cannot be read (root can), or that is not on x86-64. To read the filter it
    is stopped for a moment, once more.

    \b
    Examples:
      rbtrace-py attach 1234
      rbtrace-py attach 1234 --subprocesses     workers too
      rbtrace-py attach --ps puma --json
    """

    def one(process: Process) -> None:
        found = attach.attach(process, o.say, time_limit, not no_hook)
        with opened(None) as output:
            if as_json:
                output.lines([dumps(attached_document(found))])
            else:
                output.lines(attached_lines(found, output.style))

    return each("attach", targets, words, one)
