"""Shell completion of PIDs: the processes that run Ruby."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_pid(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete PIDs of Ruby processes. If no Ruby is found, complete all PIDs.

    Only the first word of a command is a PID. In ``12,34``, the part before the last
    comma is kept.
    """
    from rbtrace_py.session.targets.choosing import choices

    if isinstance(parameter, click.Argument) and _has_target(ctx):
        return []
    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    return [
        CompletionItem(f"{before}{comma}{one.pid}", help=one.cmdline)
        for one in choices("").candidates
        if str(one.pid).startswith(last) and str(one.pid) not in given
    ]


def complete_pid_or_file(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    if incomplete and not incomplete[0].isdigit():
        return [CompletionItem(incomplete, type="file")]
    return complete_pid(ctx, parameter, incomplete)


def _has_target(ctx: click.Context) -> bool:
    return any(ctx.params.get(name) for name in ("words", "pid_words", "ps"))
