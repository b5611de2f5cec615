"""Helpers of commands that may use the agent's hook: options, and the session."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.selecting import SelectingOptions, attach_first
from rbtrace_py.report.terminal.methods import SORTS, TOP
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.targets.targets import Targets

_via_option = click.option(
    "--via",
    type=click.Choice(["auto", "agent", "probes"]),
    default="auto",
    show_default=True,
    help="Event source for methods, gc, raise and objects: the agent's hook or"
    " Ruby's built-in probes.",
)


@dataclass(frozen=True, eq=False, repr=False)
class SourceOptions(o.EventOptions, o.AttachOption, o.OutputOptions):
    """Options of commands that ask the agent or probes: ``source_options``, too."""

    via: str


source_options = o.chain(_via_option, o.attach_option)


@dataclass(frozen=True, eq=False, repr=False)
class TableOptions(SourceOptions, o.GroupingOptions, SelectingOptions):
    """Options of those with groups: ``selecting_options`` and ``top_option``, too."""

    top: int


top_option = click.option(
    "--top",
    type=click.IntRange(1),
    default=TOP,
    show_default=True,
    help="Rows of a table of methods or classes.",
)

sort_option = click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="total",
    show_default=True,
    help="Sort order of a table of methods.",
)


def counting_session_of(
    command: str,
    targets: Targets,
    words: tuple[str, ...],
    options: TableOptions,
    digits: int | None = None,
) -> CountingSession:
    """The session that answers; with ``--attach`` every target has an agent then."""
    # Commands that only select methods need no probes.
    from rbtrace_py.session.measuring import QuerySource, counting_session

    attach_first(targets, options)
    source = QuerySource(options.via, options.selectors, options.c_calls, digits=digits)
    return counting_session(command, targets, words, options.probe_options, source)
