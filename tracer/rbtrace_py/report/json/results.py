"""JSON of ``latency``, ``values``, and ``count`` (docs/formats/latency.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.model.calls import MethodKind
from rbtrace_py.report.json.serializer import Document, fields, head

if TYPE_CHECKING:
    from rbtrace_py.aggregate.slow.spans import Exemplar, SlowPart

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100)


def document(result: Result) -> Document:
    """Return the document of ``latency``, ``values``, or ``count``."""
    return {
        **head(result.command),
        **fields(result, "pids", "series"),
        **(fields(result, "operand") if result.command == "values" else {}),
        "by": result.by,
        **({} if result.filter is None else {"filter": result.filter}),
        **fields(result, "unit", "started_ns", "ended_ns", "count"),
        "groups": [_group(result.command, group) for group in result.groups],
        **fields(result, "counters", "lost"),
        **({} if result.slow is None else {"slow": _slow(result.slow)}),
        **({} if result.cost is None else {"cost": result.cost._asdict()}),
    }


def _slow(slow: SlowPart) -> Document:
    return {
        **fields(slow, "least_ns", "count", "total_ns", "parts"),
        "exemplars": [_exemplar(one) for one in slow.exemplars],
    }


def _exemplar(exemplar: Exemplar) -> Document:
    span = exemplar.span
    return {
        "series": span.series,
        "started_ns": span.began_ns,
        "duration_ns": span.duration_ns,
        **fields(span.event, "pid", "tid", "arguments"),
        "parts": exemplar.parts,
    }


def _group(command: str, group: Group) -> Document:
    found = fields(group, "series", "key", "is_other", "truncated", "count")
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
        found |= {
            "class": method.owner,
            "method": method.name,
            "singleton": method.is_singleton,
            "c": method.kind is MethodKind.C,
            **fields(method, "path", "line", nullable=("path",)),
        }
    return found


def _distribution(values: Distribution) -> Document:
    return {
        **fields(values, "min", "max", "mean"),
        "percentiles": {f"{p:g}": values.percentile(p) for p in PERCENTILES},
        "buckets": [list(bucket) for bucket in values.buckets()],
        "apart": values.apart,
    }
