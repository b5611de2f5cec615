"""``heapdump``: every object of a process, in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.each import asked
from rbtrace_py.cli.output import Output, Ticker
from rbtrace_py.cli.whole import whole_file
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape
from rbtrace_py.report.units import whole
from rbtrace_py.session import inside
from rbtrace_py.session.targets import Targets


@click.command("heapdump", options_metavar="[OPTIONS]")
@o.takes_target
@click.option("--gc", "collect", is_flag=True, help="Collect garbage in it first.")
@o.attach_option
@o.time_limit_option(inside.DUMP_SECONDS, inside.MOST_SECONDS)
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> None:
    """Write every object of a Ruby process to a file, a line of JSON each.

    PID [FILE]: as ObjectSpace.dump_all writes it, for heap analysers. Of several
    processes each has FILE.PID. Without FILE it is heapdump-PID.json; - is
    standard output; what ends in .gz is compressed. A file is there when it is
    whole, and can be read by its owner alone: all strings are in it.

    The dump is made by a child of the process, which serves on meanwhile; it
    needs the agent in the process (`eval --help` says how to load it).

    \b
    Examples:
      rbtrace-py heapdump 1234
      rbtrace-py heapdump 1234 shop.json.gz --gc
      rbtrace-py heapdump 1234 - | jq -c 'select(.type == "STRING")'
    """
    if targets.command is not None:
        raise UsageError("heapdump is for what runs already, not for a command")
    if len(words) > 1:
        raise UsageError(f"{words[1]!r} is one word too many")
    processes = asked(targets, values["attaches"])
    name = words[0] if words else None
    if name == "-" and len(processes) > 1:
        raise UsageError("standard output takes the heap of one process")
    for process in processes:
        path = _path(name, process, len(processes) > 1)
        _dump(process, path, values["collect"], values["time_limit"])


def _path(name: str | None, process: Process, is_one_of_several: bool) -> str:
    if name is None:
        return f"heapdump-{process.pid}.json"
    if not is_one_of_several:
        return name
    stem, dot, gz = name.rpartition(".gz")
    if dot and not gz:
        return f"{stem}.{process.pid}.gz"
    return f"{name}.{process.pid}"


def _dump(process: Process, path: str, collect: bool, seconds: float) -> None:
    with whole_file(path) as write, _Progress(process.pid, write) as progress:
        size = inside.heapdump(process, progress, collect, seconds)
    if path != "-":
        style = Style.for_stream(sys.stderr)
        shown = escape(path, style)
        Output(sys.stderr, "standard error").lines(
            [f"rbtrace-py: {shown}: the heap of process {process.pid},"
             f" {whole(size)} bytes"]
        )  # fmt: skip


class _Progress:
    """Passes data on, and says on a terminal how much there was."""

    def __init__(self, pid: int, write: Callable[[bytes], None]) -> None:
        self._what = f"dumping the heap of pid {pid}"
        self._write = write
        self._size = 0
        self._begin = time.monotonic()
        self._ticker = Ticker(self._what, "stops, and leaves no file")

    def __enter__(self) -> _Progress:
        self._ticker(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.end()

    def __call__(self, data: bytes) -> None:
        self._write(data)
        self._size += len(data)
        what = f"{self._what}: {self._size >> 20} MiB"
        self._ticker.say(what, time.monotonic() - self._begin)
