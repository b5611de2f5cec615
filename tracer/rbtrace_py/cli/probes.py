"""``probes``: the probes of a process."""

from __future__ import annotations

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.json.setup import probes_document
from rbtrace_py.report.terminal.probes import probe_lines
from rbtrace_py.session.probes.hints import without_gem
from rbtrace_py.session.probes.probes import list_probes
from rbtrace_py.session.targets.targets import Targets


@target_command("probes", "PID [WORD]...", o.OutputOptions)
def command(targets: Targets, words: tuple[str, ...], options: o.OutputOptions) -> None:
    """List the USDT probes of a process, including Ruby's and its libraries'.

    Names or globs after the target select probes. Probes that a tool traces right
    now are marked. Your own processes need no root.

    \b
    Examples:
      rbtrace-py probes 1234
      rbtrace-py probes 1234 'shop:*' 'gc*'
      rbtrace-py probes 1234 --json
    """
    listing = list_probes(targets, words)
    if listing.missing is not None and not listing.probes:
        raise listing.missing
    with opened(options.output) as output:
        if options.as_json:
            output.lines([dumps(probes_document(targets.pids, listing.probes))])
        else:
            output.lines(probe_lines(listing.probes, output.style))
    if not listing.probes:
        for hint in filter(None, map(without_gem, targets.processes.values())):
            say_note(hint)
    for problem in listing.problems:
        say_note(problem)
    if listing.missing is not None:
        raise listing.missing
