"""JSON of ``calls`` (docs/formats/calls.md)."""

from __future__ import annotations

from collections.abc import Mapping

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread
from rbtrace_py.aggregate.results import lost
from rbtrace_py.model.calls import MethodKind
from rbtrace_py.report.json.serializer import Document, fields, head

_EVENTS = {
    CallEventKind.RETURNED: "call",
    CallEventKind.ENDED: "unfinished",
    CallEventKind.LOST: "lost",
    CallEventKind.COLLECTED: "gc",
}


def call_document(
    reported: ReportedCall, names: Mapping[Thread, str]
) -> Document | None:
    """Return a line of ``calls --json``, or None if a later line contains the event.

    Args:
        reported: Event of a call.
        names: Names of threads.
    """
    event = reported.event
    name = _EVENTS.get(event.what)
    if name is None or (name == "call" and event.start is None):
        return None
    found: Document = {
        **head("calls"),
        "event": name,
        "time_ns": event.time if event.start is None else event.start,
        "pid": reported.pid,
        "tid": event.stack.tid,
        "stack": event.stack.number,
        "fiber": event.stack.fiber,
        "thread": names.get(reported.thread) or None,
        "depth": event.depth,
    }
    if name == "lost":
        return {**found, "count": event.count}
    found["duration_ns"] = None if name == "unfinished" else event.duration
    if name == "gc":
        return found
    return {
        **found,
        "cpu_ns": event.cpu_ns,
        "method": reported.method.full_name,
        "is_c": reported.method.kind is MethodKind.C,
        **fields(reported.method, "path", "line"),
        "values": dict(reported.values) or None,
    }


def calls_end_document(
    count: int, counters: Mapping[str, int], stays: list[str]
) -> Document:
    """Return the last line of ``calls --json``.

    Args:
        count: Number of calls shown.
        counters: Other counts, such as losses, by name.
        stays: Descriptions of what remains in the targets.
    """
    return {
        **head("calls-end"),
        "count": count,
        "counters": counters,
        "lost": lost(counters),
        "stays": stays,
    }
