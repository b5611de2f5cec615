"""JSON of ``trace`` (docs/formats/trace.md)."""

from __future__ import annotations

from collections.abc import Mapping

from rbtrace_py.aggregate.results import lost
from rbtrace_py.model.events import Event, RaiseEvent, Unreadable
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.report.json.serializer import Document, head, readable


def event_document(event: Event) -> Document:
    """One line of ``trace``."""
    names = event.probe.argument_names
    values = list(zip(names, event.values, strict=False))
    cut = [name for name, yes in zip(names, event.truncated, strict=False) if yes]
    return {
        **head("trace"),
        "time_ns": event.time_ns,
        "pid": event.pid,
        "tid": event.tid,
        "comm": event.comm,
        "probe": event.probe.full_name,
        "arguments": {name: readable(value) for name, value in values},
        "truncated": cut,
        "unreadable": [name for name, v in values if isinstance(v, Unreadable)],
        **(
            {"backtrace": list(event.backtrace)}
            if isinstance(event, RaiseEvent)
            else {}
        ),
    }


def trace_end_document(
    events: int, counters: Mapping[str, int], cost: HitCost | None = None
) -> Document:
    """The last line of ``trace``: how much there was and what is missing."""
    return {
        **head("trace-end"),
        "count": events,
        "counters": dict(counters),
        "lost": lost(counters),
        **({} if cost is None else {"cost": cost._asdict()}),
    }
