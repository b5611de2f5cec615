"""``shapesdump``: the shapes of a process's objects, in a file."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.atomic_file import Write
from rbtrace_py.cli.common.dump_files import file_option, write_dumps
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import commands
from rbtrace_py.session.inside.copy_cost import check_room
from rbtrace_py.session.targets.targets import Targets


@click.command("shapesdump", options_metavar="[OPTIONS]")
@o.takes("PID [FILE]")
@file_option
@o.attach_option
@o.yes_option
@o.time_limit_option(commands.DUMP_SECONDS, commands.MOST_SECONDS)
def command(
    targets: Targets,
    words: tuple[str, ...],
    file: str | None,
    attaches: bool,
    yes: bool,
    time_limit: float,
) -> None:
    """Write every object shape of a Ruby process to a file, a line of JSON each.

    PID [FILE]: as ObjectSpace.dump_shapes writes it, which Ruby has since 3.3.
    Shapes say which instance variables objects have, in which order they were
    set; many of one class cost speed. FILE is as of `heapdump`; without it,
    shapesdump-PID.json.

    It needs the agent in the process (`eval --help` says how to load it), and
    memory for a copy of it (`heapdump --help`).

    \b
    Examples:
      rbtrace-py shapesdump 1234
      rbtrace-py shapesdump 1234 - | jq -r .edge_name | sort | uniq -c
    """

    def dump(process: Process, write: Write) -> int:
        def before() -> None:
            check_room(process, False, yes, o.say)

        return commands.shapesdump(process, write, time_limit, before)

    write_dumps("shapesdump", "shapes", targets, words, file, attaches, dump)
