"""JSON of ``latency``, ``values``, and ``count`` (docs/formats/latency.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result, lost
from rbtrace_py.model.calls import MethodKind
from rbtrace_py.report.json.serializer import Document, head, readable

if TYPE_CHECKING:
    from rbtrace_py.aggregate.slow.spans import Exemplar, SlowPart

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100)


def document(result: Result) -> Document:
    """Return the document of latency, values or count; ``schema`` names the command."""
    return {
        **head(result.command),
        "pids": list(result.pids),
        "series": list(result.series),
        **({"operand": result.operand} if result.command == "values" else {}),
        "by": result.by,
        **({} if result.filter is None else {"filter": result.filter}),
        "unit": result.unit,
        "started_ns": result.started_ns,
        "ended_ns": result.ended_ns,
        "count": result.count,
        "groups": [_group(result.command, group) for group in result.groups],
        "counters": dict(result.counters),
        "lost": lost(result.counters),
        **({} if result.slow is None else {"slow": _slow(result.slow)}),
        **({} if result.cost is None else {"cost": result.cost._asdict()}),
    }


def _slow(slow: SlowPart) -> Document:
    return {
        "least_ns": slow.least_ns,
        "count": slow.count,
        "total_ns": slow.total_ns,
        "parts": dict(slow.parts),
        "exemplars": [_exemplar(one) for one in slow.exemplars],
    }


def _exemplar(exemplar: Exemplar) -> Document:
    span = exemplar.span
    return {
        "series": span.series,
        "started_ns": span.began_ns,
        "duration_ns": span.duration_ns,
        "pid": span.event.pid,
        "tid": span.event.tid,
        "arguments": {
            name: readable(value) for name, value in span.event.arguments.items()
        },
        "parts": dict(exemplar.parts),
    }


def _group(command: str, group: Group) -> Document:
    found: Document = {
        "series": group.series,
        "key": group.key,
        "other": group.is_other,
        "truncated": group.truncated,
        "count": group.count,
    }
    if group.key_name is not None:
        found["key_name"] = group.key_name
    if command != "count" and group.distribution is not None:
        found["total"] = group.total
        found.update(_distribution(group.distribution))
    if isinstance(group, MethodGroup):
        found.update(_method_group(command, group))
    return found


def _method_group(command: str, group: MethodGroup) -> Document:
    found: Document = {}
    if command != "count":
        found = {
            "entries": group.entries,
            "total": group.total if group.has_total else None,
            "self": group.own,
            "sum": group.summed,
            "max": group.highest,
        }
    method = group.method
    if method is not None and method.name:
        found["class"] = method.owner
        found["method"] = method.name
        found["singleton"] = method.is_singleton
        found["c"] = method.kind is MethodKind.C
        found["path"] = method.path or None
        found["line"] = method.line
    return found


def _distribution(values: Distribution) -> Document:
    return {
        "min": values.min,
        "max": values.max,
        "mean": values.mean,
        "percentiles": {f"{p:g}": values.percentile(p) for p in PERCENTILES},
        "buckets": [list(bucket) for bucket in values.buckets()],
        "apart": values.apart,
    }
