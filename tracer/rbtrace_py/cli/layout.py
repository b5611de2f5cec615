"""``layout``: what is known of a Ruby's structures, and how it was learnt."""

from __future__ import annotations

from typing import Any

import click

from rbtrace_py.cli import options as o
from rbtrace_py.cli.output import opened
from rbtrace_py.errors import UsageError
from rbtrace_py.report.json import dumps
from rbtrace_py.report.layout import layout_document, layout_lines
from rbtrace_py.session.layout import SOURCES_BY_NAME, LayoutOptions, describe
from rbtrace_py.session.targets import Targets


@click.command("layout", options_metavar="[OPTIONS]")
@o.takes_only_target
@click.option(
    "--source",
    type=click.Choice(list(SOURCES_BY_NAME)),
    help="Ask only this one.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Learn it by running the target's Ruby, again if it was done before.",
)
@o.ruby_version_option
@o.json_option
@o.output_option
def command(
    targets: Targets, words: tuple[str, ...], as_json: bool, **values: Any
) -> None:
    """Show which Ruby a process runs, and where its structures' offsets came from.

    They are taken from DWARF where there are debug symbols, else from the table
    of that version. The binary's own code, and the VM in memory, must agree; if
    they do not, the target's Ruby is run to learn its layout: as the target's
    user (nobody for root), in its root, without capabilities, network, files to
    write or other programs.

    \b
    Examples:
      rbtrace-py layout 1234
      rbtrace-py layout 1234 --source table --json
      sudo rbtrace-py layout 1234 --calibrate
    """
    if targets.command is not None:
        raise UsageError("layout looks at what runs already, not at a command")
    if words:
        raise UsageError(f"{words[0]!r} is one word too many")
    source, calibrate = values["source"], values["calibrate"]
    if calibrate and source not in (None, "calibration"):
        raise UsageError(f"--calibrate and --source {source} do not go together")
    options = LayoutOptions(values["ruby_version"], source, calibrate)
    described = [describe(one, options) for one in targets.processes.values()]
    with opened(values["output"]) as output:
        for number, one in enumerate(described):
            if as_json:
                output.lines([dumps(layout_document(one))])
            else:
                output.lines([""] if number else [])
                output.lines(layout_lines(one, output.style))
