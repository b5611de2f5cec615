"""Helpers of commands that may use the agent's hook: options, and the event source."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, Report, answer
from rbtrace_py.errors import UsageError
from rbtrace_py.report.terminal.methods import SORTS, TOP
from rbtrace_py.session.methods.event_source import EventSource, choose
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets


@dataclass(frozen=True, eq=False, repr=False)
class SelectingOptions:
    """``selecting_options``."""

    selectors: tuple[str, ...]
    c_calls: bool


selecting_options = o.chain(
    click.option(
        "-m",
        "--method",
        "selectors",
        multiple=True,
        metavar="SELECTOR",
        help="Only matching methods: total, Order#total, Order.find, Order#, Order.;"
        " repeatable.",
    ),
    click.option(
        "--c-calls",
        is_flag=True,
        help="Include methods written in C; the process stays slower afterwards.",
    ),
)

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
    """Of every command that asks the agent or the probes: ``source_options``, too."""

    via: str


source_options = o.chain(_via_option, o.attach_option)


@dataclass(frozen=True, eq=False, repr=False)
class TableOptions(SourceOptions, o.GroupingOptions, SelectingOptions):
    """Of those with groups: ``selecting_options`` and ``top_option``, too."""

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


def source_of(
    command: str,
    targets: Targets,
    words: tuple[str, ...],
    options: SourceOptions,
    selecting: str = "",
    by: str | None = None,
) -> EventSource:
    """Who answers; selecting: the option that says which methods, if any."""
    attach_first(targets, options)
    via, waits = options.via, options.wait
    return choose(targets, command, words, via, waits, selecting, by)


def table_source(
    command: str, targets: Targets, words: tuple[str, ...], options: TableOptions
) -> EventSource:
    """The same; ``-m`` alone means the word ``method``, and the agent."""
    has_methods = bool({"method", ":method"} & set(words))
    selecting = "--c-calls" if options.c_calls and has_methods else ""
    if options.selectors:
        selecting = "-m"
        # With the colon: a user's probe of that name takes no selectors.
        words = words if has_methods else (*words, ":method")
    return source_of(command, targets, words, options, selecting, options.by)


def attach_first(targets: Targets, options: o.AttachOption) -> None:
    """With ``--attach`` every target has an agent then."""
    if not options.attaches:
        return
    if targets.command is not None:
        raise UsageError("--attach works on running processes, not on a command")
    # It takes much that only this needs.
    from rbtrace_py.cli.common.per_process import with_agent

    with_agent(targets, attaches=True)


def ask(
    command: str,
    targets: Targets,
    source: EventSource,
    options: TableOptions,
    report: Report,
    hlog: str | None = None,
) -> int:
    """``command`` of what the hooks see or time; the exit code."""
    if options.filter_ is not None:
        raise UsageError(
            "the agent's hook does not support --filter",
            "Select methods with -m; group them with --by",
        )
    by = options.by
    if by is None and command == "latency" and "method" in source.words:
        by = "method"
    settings = MethodOptions(
        by=by,
        select=selectors_of(options.selectors, ()),
        c_calls=options.c_calls,
        wait=options.wait,
        wait_seconds=options.duration,
        confirm=options.confirm,
    )
    session = Methods(targets, command, source.words, settings)
    rendering = Rendering(report, options.as_json, options.output, hlog)
    code = answer(session, options.limits, rendering)
    if session.hint:
        click.echo(f"rbtrace-py: {session.hint}", err=True)
    return code
