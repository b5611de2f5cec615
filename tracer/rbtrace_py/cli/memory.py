"""``memory``: what a process has in its heap, and what the kernel gave it."""

from __future__ import annotations

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.each import asked
from rbtrace_py.cli.output import opened
from rbtrace_py.errors import UsageError
from rbtrace_py.report.inside import memory_document, memory_lines
from rbtrace_py.report.json import dumps
from rbtrace_py.session import inside
from rbtrace_py.session.targets import Targets


@click.command("memory", options_metavar="[OPTIONS]")
@o.takes_target
@o.attach_option
@o.json_option
@o.output_option
def command(
    targets: Targets,
    words: tuple[str, ...],
    attaches: bool,
    as_json: bool,
    output: str | None,
) -> None:
    """Show how much memory a process uses: its own, Ruby's objects, GC.stat.

    Asked is the process, through its agent (`eval --help` says how to load it).
    Objects are counted by walking the heap, which stops the program meanwhile:
    some 20 ms for a million of them.

    \b
    Examples:
      rbtrace-py memory 1234
      rbtrace-py memory 1234 --json
    """
    if targets.command is not None:
        raise UsageError("memory is for what runs already, not for a command")
    if words:
        raise UsageError(f"{words[0]!r} is one word too many")
    found = {one.pid: inside.memory(one) for one in asked(targets, attaches)}
    with opened(output) as out:
        for number, (pid, use) in enumerate(found.items()):
            if as_json:
                out.lines([dumps(memory_document(pid, use))])
            else:
                out.lines([""] if number else [])
                out.lines(memory_lines(pid, use, out.style))
