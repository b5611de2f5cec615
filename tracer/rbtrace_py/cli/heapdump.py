"""``heapdump``: every object of a process, in a file."""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.atomic_file import Write
from rbtrace_py.cli.common.dump_files import file_option, write_dumps
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import commands
from rbtrace_py.session.inside.copy_cost import check_room
from rbtrace_py.session.targets.targets import Targets


@click.command("heapdump", options_metavar="[OPTIONS]")
@o.takes("PID [FILE]")
@file_option
@click.option("--gc", "collect", is_flag=True, help="Collect garbage in it first.")
@o.attach_option
@o.yes_option
@o.time_limit_option(commands.DUMP_SECONDS, commands.MOST_SECONDS)
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> None:
    """Write every object of a Ruby process to a file, a line of JSON each.

    PID [FILE]: as ObjectSpace.dump_all writes it, for heap analysers. Of several
    processes each has FILE.PID. Without FILE it is heapdump-PID.json; - is
    standard output; what ends in .gz is compressed. A file is there when it is
    whole, and can be read by its owner alone: all strings are in it.

    The dump is made by a child of the process, which serves on meanwhile and
    ends with it; it needs the agent in the process (`eval --help` says how to
    load it). What memory the child can take is said; where less is free, --yes
    is needed, and where it certainly does not fit nothing is done.

    \b
    Examples:
      rbtrace-py heapdump 1234
      rbtrace-py heapdump 1234 shop.json.gz --gc
      rbtrace-py heapdump 1234 - | jq -c 'select(.type == "STRING")'
    """

    def dump(process: Process, write: Write) -> int:
        collects = values["collect"]

        def before() -> None:
            check_room(process, collects, values["yes"], o.say)

        return commands.heapdump(process, write, collects, values["time_limit"], before)

    file, attaches = values["file"], values["attaches"]
    write_dumps("heapdump", "heap", targets, words, file, attaches, dump)
