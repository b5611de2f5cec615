"""Helpers of commands that may use the agent's hook: options, and the session."""

from __future__ import annotations

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.selecting import SelectingOptions, attach_first
from rbtrace_py.report.terminal.methods import TOP
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.targets.targets import Targets


class SourceOptions(o.AttachOption):
    """Options that select the agent or probes as the source of events."""

    via: str = option(
        "--via",
        type=click.Choice(["auto", "agent", "probes"]),
        default="auto",
        help="Event source for methods, gc, raise and objects: the agent's hook or"
        " Ruby's built-in probes.",
    )


class TableOptions(o.GroupingOptions, SelectingOptions, SourceOptions, o.OutputOptions):
    """Options of commands whose result may be a table of methods."""

    top: int = option(
        "--top",
        after="attaches",
        type=click.IntRange(1),
        default=TOP,
        help="Rows of a table of methods or classes.",
    )


def counting_session_of(
    command: str,
    targets: Targets,
    words: tuple[str, ...],
    options: TableOptions,
    digits: int | None = None,
) -> CountingSession:
    """Return the session of a command. With ``--attach``, load the agent first.

    Args:
        command: Name of the command.
        targets: Target processes.
        words: Words of the command line.
        options: Options of the command.
        digits: Significant digits of percentiles; None for the default.
    """
    # Commands that only select methods need no probes.
    from rbtrace_py.session.measuring import QuerySource, counting_session

    attach_first(targets, options)
    source = QuerySource(options.via, options.selectors, options.c_calls, digits=digits)
    return counting_session(command, targets, words, options.probe_options, source)
