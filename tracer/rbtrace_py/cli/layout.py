"""``layout``: known offsets of a Ruby's structures, and their sources."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.errors import UsageError
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.json.setup import layout_document
from rbtrace_py.report.terminal.layout import layout_lines
from rbtrace_py.session.stacks.layout import (
    SOURCES_BY_NAME,
    LayoutOptions,
    describe,
    save,
)
from rbtrace_py.session.targets.targets import Targets


class _Options(o.RubyOptions, o.OutputOptions):
    source: str | None = option(
        "--source",
        type=click.Choice(list(SOURCES_BY_NAME)),
        help="Use only this source, and machine code.",
    )
    save_path: str | None = option(
        "--save",
        metavar="FILE",
        type=WritableFile(),
        help="Save the offsets to FILE for --layout.",
    )
    saved_layout: str | None = o.saved_layout_option()


@target_command("layout", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> None:
    """Show which Ruby a process runs and where its structure offsets come from.

    Sources in order of trust: a saved layout, DWARF, the table for the version,
    machine code. The VM in memory decides: offsets that it contradicts are
    discarded, and of the rest the most trusted wins.

    \b
    Examples:
      rbtrace-py layout 1234
      rbtrace-py layout 1234 --source table --json
      rbtrace-py layout 1234 --save ruby.layout    # from a build with symbols
      rbtrace-py dump 5678 --layout ruby.layout    # the same build, stripped
    """
    if targets.command is not None:
        raise UsageError("layout works on running processes, not on a command")
    if words:
        raise UsageError(f"too many arguments: {words[0]!r}")
    settings = LayoutOptions(
        options.ruby_version, options.source, options.read_layout()
    )
    processes = list(targets.processes.values())
    if options.save_path is not None:
        if len(processes) != 1:
            raise UsageError("--save takes only one process")
        with opened(options.save_path) as file:
            file.lines(save(processes[0], settings).splitlines())
    described = [describe(one, settings) for one in processes]
    with opened(options.output) as output:
        for number, one in enumerate(described):
            if options.as_json:
                output.lines([dumps(layout_document(one))])
            else:
                output.lines([""] if number else [])
                output.lines(layout_lines(one, output.style))
