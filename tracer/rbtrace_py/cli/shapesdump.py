"""``shapesdump``: write the shapes of a process's objects to a file."""

from __future__ import annotations

from rbtrace_py.cli.common.dump_files import (
    DumpFileOptions,
    Progress,
    write_dumps,
)
from rbtrace_py.cli.common.messages import say
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import commands
from rbtrace_py.session.inside.copy_cost import check_room
from rbtrace_py.session.targets.targets import Targets


@target_command("shapesdump", "PID [FILE]", DumpFileOptions)
def command(targets: Targets, words: tuple[str, ...], options: DumpFileOptions) -> None:
    """Write every object shape of a Ruby process to a file, one line of JSON each.

    The format is the same as for ObjectSpace.dump_shapes, in Ruby 3.3 and later. A
    shape is the list of instance variables of an object, in the order in which they
    were set; many shapes for one class cost speed. FILE works as for `heapdump`;
    the default is shapesdump-PID.json.

    The process must have loaded the agent (see `eval --help`) and have memory for a
    copy of itself (see `heapdump --help`).

    \b
    Examples:
      rbtrace-py shapesdump 1234
      rbtrace-py shapesdump 1234 - | jq -r .edge_name | sort | uniq -c
    """

    def dump(process: Process, progress: Progress) -> int:
        confirm = progress.before(options.confirm)

        def before() -> None:
            check_room(process, False, confirm, progress.before(say))

        return commands.shapesdump(
            process, progress, options.time_limit, before, confirm
        )

    write_dumps("shapesdump", "shapes", targets, words, options, dump)
