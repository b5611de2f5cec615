"""Helpers of commands that select methods, or load the agent first."""

from __future__ import annotations

from rbtrace_py.cli.common.option_fields import OptionGroup, option
from rbtrace_py.cli.common.options import MayAttach
from rbtrace_py.errors import UsageError
from rbtrace_py.session.targets.targets import Targets


class SelectingOptions(OptionGroup):
    """Options that select methods."""

    selectors: tuple[str, ...] = option(
        "-m",
        "--method",
        metavar="SELECTOR",
        help="Only matching methods: total, Order#total, Order.find, Order#, Order.;"
        " repeatable.",
    )
    c_calls: bool = option(
        "--c-calls",
        help="Include methods written in C; the process stays slower afterwards.",
    )


def attach_first(targets: Targets, options: MayAttach) -> None:
    """Load the agent into all targets if ``--attach`` is given."""
    if not options.attaches:
        return
    if targets.command is not None:
        raise UsageError("--attach works on running processes, not on a command")
    # Import late: only this function needs these modules.
    from rbtrace_py.cli.common.per_process import with_agent

    with_agent(targets, options)
