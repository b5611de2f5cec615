"""``backtraces``: every thread as Ruby itself sees it."""

from __future__ import annotations

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.each import asked
from rbtrace_py.cli.output import opened
from rbtrace_py.errors import UsageError
from rbtrace_py.report.inside import backtrace_lines, backtraces_document
from rbtrace_py.report.json import dumps
from rbtrace_py.session import inside
from rbtrace_py.session.targets import Targets


@click.command("backtraces", options_metavar="[OPTIONS]")
@o.takes_target
@click.option("--agent", is_flag=True, help="The agent's own threads too.")
@o.attach_option
@o.json_option
@o.output_option
def command(
    targets: Targets,
    words: tuple[str, ...],
    agent: bool,
    attaches: bool,
    as_json: bool,
    output: str | None,
) -> None:
    """Print the backtrace of every thread, as Ruby itself has it.

    Asked is the process, through its agent (`eval --help` says how to load it);
    `dump` needs none, and shows fibers, C functions and states besides.

    \b
    Examples:
      rbtrace-py backtraces 1234
      rbtrace-py backtraces 1234 --json
    """
    if targets.command is not None:
        raise UsageError("backtraces is for what runs already, not for a command")
    if words:
        raise UsageError(f"{words[0]!r} is one word too many")
    found = {
        process.pid: [
            thread
            for thread in inside.backtraces(process)
            if agent or not thread.is_agent
        ]
        for process in asked(targets, attaches)
    }
    with opened(output) as out:
        for number, (pid, threads) in enumerate(found.items()):
            if as_json:
                out.lines([dumps(backtraces_document(pid, threads))])
            else:
                out.lines([""] if number else [])
                out.lines(backtrace_lines(pid, threads, out.style))
