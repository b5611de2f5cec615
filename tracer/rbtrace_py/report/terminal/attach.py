"""Lines of ``attach`` and ``detach``."""

from __future__ import annotations

from collections.abc import Iterator

from rbtrace_py.model.attach import AttachResult, Cost, Detached
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape
from rbtrace_py.report.units import duration


def attached_lines(found: AttachResult, style: Style) -> Iterator[str]:
    """Yield lines about the agent's answer and the cost of loading it."""
    if found.cost is None:
        yield f"process {found.pid} has the agent already"
    else:
        yield f"process {found.pid} now has the agent, and it answers"
        yield from (f"  {line}" for line in _cost_lines(found.cost, style))
    yield f"  {escape(found.ruby, style)}"
    if found.without_hook is not None:
        yield f"  no method events: {escape(found.without_hook, style)}"


def _cost_lines(cost: Cost, style: Style) -> Iterator[str]:
    stopped = duration(cost.stopped_ns, style)
    how = f"paused once, for {stopped}"
    if cost.attempts > 1:
        longest = duration(cost.longest_ns, style)
        how = f"paused {cost.attempts} times, for {stopped}, at most {longest} at once"
    yield f"{how}; first answer after {duration(cost.answer_ns, style)}"


def detached_lines(found: Detached, style: Style) -> Iterator[str]:
    """Yield lines that name what was removed and what remains."""
    yield f"process {found.pid}: the agent is stopped"
    yield "  removed: its socket, its threads, everything it had armed"
    if found.tracer is not None:
        yield f"  process {found.tracer} was tracing through it"
    yield "  stays until the process exits: its code, inactive"
