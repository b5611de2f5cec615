"""Helpers of commands that select methods, or load the agent first."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.errors import UsageError
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


def attach_first(targets: Targets, options: o.AttachOption) -> None:
    """With ``--attach`` every target has an agent then."""
    if not options.attaches:
        return
    if targets.command is not None:
        raise UsageError("--attach works on running processes, not on a command")
    # It takes much that only this needs.
    from rbtrace_py.cli.common.per_process import with_agent

    with_agent(targets, options)
