"""Helpers of commands that write a dump of each process to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from rbtrace_py.cli.common.atomic_file import Write, atomic_file
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.options import AttachOption, YesOption, time_limit_option
from rbtrace_py.cli.common.output import Output
from rbtrace_py.cli.common.per_process import check_words, leaves_out, with_agent
from rbtrace_py.cli.common.waiting import Waiting
from rbtrace_py.cli.common.writable import WritableFile, check_writable
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape
from rbtrace_py.report.units import format_count
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets

Dump = Callable[[Process, "Progress"], int]
"""Function that writes the dump of a process and returns its size in bytes."""


class DumpFileOptions(AttachOption, YesOption):
    """Options of commands that write a dump to a file."""

    file: str | None = option(
        "-o", "--output", type=WritableFile(), help="Same as FILE."
    )
    time_limit: float = time_limit_option(
        commands.DUMP_SECONDS, commands.MOST_SECONDS, after="yes"
    )


def write_dumps(
    name: str,
    what: str,
    targets: Targets,
    words: tuple[str, ...],
    options: DumpFileOptions,
    dump: Dump,
) -> None:
    """Write each target's dump into the file that ``words`` or -o name.

    Args:
        name: Name of the command.
        what: Description of the dumped data.
        targets: Target processes.
        words: Words of the command line.
        options: Options of the command.
        dump: Function that writes the dump of a process.

    Raises:
        UsageError: There are too many words, or the destination does not fit.
        RbtraceError: A file cannot be written, or a process cannot be dumped.
    """
    check_words(name, targets, words, most=0 if options.file else 1)
    file = words[0] if words else options.file
    check_writable(file or f"{name}-{os.getpid()}.json")
    processes = with_agent(targets, options)
    if file == "-" and len(processes) > 1:
        raise UsageError(f"standard output takes the {what} of only one process")
    if file == "-" and sys.stdout.isatty():
        # A dump contains data of the process, including terminal control characters.
        raise UsageError(f"will not write the {what} to a terminal", "Name a file")
    for process in processes:
        if file is None:
            path = f"{name}-{process.pid}.json"
        else:
            path = file if len(processes) == 1 else _numbered(file, process.pid)
        try:
            _dump(process, path, what, dump)
        except RbtraceError as error:
            if not leaves_out(targets, process, error):
                raise


def _numbered(name: str, pid: int) -> str:
    """Return the file name for one of several processes."""
    stem, dot, gz = name.rpartition(".gz")
    return f"{stem}.{pid}.gz" if dot and not gz else f"{name}.{pid}"


def _dump(process: Process, path: str, what: str, dump: Dump) -> None:
    with atomic_file(path) as write:
        doing = f"{what} of pid {process.pid}"
        progress = Progress(doing, write)
        with progress:
            size = dump(process, progress)
    if path != "-":
        shown = escape(path, Style.for_stream(sys.stderr))
        Output(sys.stderr, "standard error").lines(
            [f"rbtrace-py: {shown}: the {what} of process {process.pid},"
             f" {format_count(size)} bytes"]
        )  # fmt: skip


class Progress(Waiting):
    """Writer of data that shows its size on a terminal.

    The process may collect garbage for a long time before it sends data.
    """

    def __init__(self, what: str, write: Write) -> None:
        super().__init__(what, "stops without leaving a file", quiet=0.0)
        self._write = write
        self._size = 0

    def __call__(self, data: bytes) -> None:
        self._write(data)
        self._size += len(data)

    def what(self) -> str:
        return f"{super().what()}: {self._size >> 20} MiB"
