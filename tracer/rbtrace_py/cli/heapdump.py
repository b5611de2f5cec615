"""``heapdump``: write every object of a process to a file."""

from __future__ import annotations

from rbtrace_py.cli.common.dump_files import (
    DumpFileOptions,
    Progress,
    write_dumps,
)
from rbtrace_py.cli.common.messages import say
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import commands
from rbtrace_py.session.inside.copy_cost import check_room
from rbtrace_py.session.targets.targets import Targets


class _Options(DumpFileOptions):
    collect: bool = option("--gc", after="file", help="Collect garbage first.")


@target_command("heapdump", "PID [FILE]", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> None:
    """Write every object of a Ruby process to a file, one line of JSON each.

    PID [FILE]: heap analyzers read this format (ObjectSpace.dump_all). The default
    FILE is heapdump-PID.json; - is standard output; .gz compresses. With several
    processes, each gets FILE.PID. The file appears when the dump is
    complete. Only its owner can read it, since it contains every string.

    A child of the process writes the dump while the process keeps serving; the
    child exits with the process. The agent must be loaded (see `eval --help`). The
    memory that the child may take is printed; if less is free, --yes is required,
    and if it cannot possibly fit, nothing is done. --yes is also required for a
    process with a seccomp filter that cannot be read (see `attach --help`).

    \b
    Examples:
      rbtrace-py heapdump 1234
      rbtrace-py heapdump 1234 shop.json.gz --gc
      rbtrace-py heapdump 1234 - | jq -c 'select(.type == "STRING")'
    """

    def dump(process: Process, progress: Progress) -> int:
        collects, seconds = options.collect, options.time_limit
        confirm = progress.before(options.confirm)

        def before() -> None:
            check_room(process, collects, confirm, progress.before(say))

        return commands.heapdump(process, progress, collects, seconds, before, confirm)

    write_dumps("heapdump", "heap", targets, words, options, dump)
