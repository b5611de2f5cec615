"""Helpers of commands that may use the agent's hook: options, and the event source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.grouped_report import Rendering, answer
from rbtrace_py.errors import UsageError
from rbtrace_py.report.terminal.methods import SORTS, TOP, counts_report, methods_report
from rbtrace_py.session.methods.event_source import EventSource, choose
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets

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

source_options = o.chain(_via_option, o.attach_option)
"""Of every command that asks the agent or the probes."""

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
    command: str, targets: Targets, words: tuple[str, ...], values: dict[str, Any]
) -> EventSource:
    """Who answers; ``-m`` alone means the word ``method``, and the agent."""
    if values.get("selectors") and not {"method", ":method"} & set(words):
        # With the colon: a user's probe of that name takes no selectors.
        words = (*words, ":method")
    attach_first(targets, values)
    waits = bool(values.get("wait"))
    selecting = _selecting(words, values)
    by = values.get("by")
    return choose(targets, command, words, values["via"], waits, selecting, by)


def _selecting(words: tuple[str, ...], values: dict[str, Any]) -> str:
    """The option that says which methods; empty if none does."""
    if values.get("selectors"):
        return "-m"
    has_methods = bool({"method", ":method"} & set(words))
    return "--c-calls" if values.get("c_calls") and has_methods else ""


def attach_first(targets: Targets, values: dict[str, Any]) -> None:
    """With ``--attach`` every target has an agent then."""
    if not values["attaches"]:
        return
    if targets.command is not None:
        raise UsageError("--attach works on running processes, not on a command")
    # It takes much that only this needs.
    from rbtrace_py.cli.common.per_process import with_agent

    with_agent(targets, attaches=True)


def latency(targets: Targets, source: EventSource, values: dict[str, Any]) -> int:
    """``latency`` of what the hooks time; the exit code."""
    report = partial(
        methods_report,
        unit=values["unit"],
        sort=values["sort"],
        top=values["top"],
        pictures=bool(values["selectors"]),
    )
    return _ask("latency", targets, source, values, report)


def count(targets: Targets, source: EventSource, values: dict[str, Any]) -> int:
    """``count`` of what the hooks see; the exit code."""
    report = partial(counts_report, top=values["top"])
    return _ask("count", targets, source, values, report)


def _ask(
    command: str,
    targets: Targets,
    source: EventSource,
    values: dict[str, Any],
    report: Callable[..., Any],
) -> int:
    if values["filter_"] is not None:
        raise UsageError(
            "the agent's hook does not support --filter",
            "Select methods with -m; group them with --by",
        )
    by = values["by"]
    if by is None and command == "latency" and "method" in source.words:
        by = "method"
    session = Methods(targets, command, source.words, _options(by, values))
    rendering = Rendering(
        report, values["as_json"], values["output"], values.get("hlog")
    )
    code = answer(session, o.limits_of(values), rendering)
    if session.hint:
        click.echo(f"rbtrace-py: {session.hint}", err=True)
    return code


def _options(by: str | None, values: dict[str, Any]) -> MethodOptions:
    common = o.options_of(values)
    return MethodOptions(
        by=by,
        select=selectors_of(values["selectors"], ()),
        c_calls=values["c_calls"],
        wait=common.wait,
        wait_seconds=common.wait_seconds,
        confirm=common.confirm,
    )
