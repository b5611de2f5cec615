"""JSON of ``trace`` (docs/formats/trace.md)."""

from __future__ import annotations

from collections.abc import Mapping

from rbtrace_py.aggregate.results import lost
from rbtrace_py.model.events import Event, RaiseEvent, Unreadable
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.report.json.serializer import Document, fields, head


def event_document(event: Event) -> Document:
    """Return a line of ``trace --json``."""
    names = event.probe.argument_names
    values = list(zip(names, event.values, strict=False))
    cut = [name for name, yes in zip(names, event.truncated, strict=False) if yes]
    return {
        **head("trace"),
        **fields(event, "time_ns", "pid", "tid", "comm"),
        "probe": event.probe.full_name,
        "arguments": dict(values),
        "truncated": cut,
        "unreadable": [name for name, v in values if isinstance(v, Unreadable)],
        **(fields(event, "backtrace") if isinstance(event, RaiseEvent) else {}),
    }


def trace_end_document(
    events: int, counters: Mapping[str, int], cost: HitCost | None = None
) -> Document:
    """Return the last line of ``trace --json``.

    Args:
        events: Number of events shown.
        counters: Other counts, such as losses, by name.
        cost: Cost of tracing for the processes, if it is known.
    """
    return {
        **head("trace-end"),
        "count": events,
        "counters": counters,
        "lost": lost(counters),
        **({} if cost is None else {"cost": cost._asdict()}),
    }
