"""JSON: what docs/formats describes.

Functions return plain dicts; ``dumps`` makes a line of one. A document says
its schema and version first. Adding a key keeps the version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result, lost
from rbtrace_py.model.calls import MethodKind
from rbtrace_py.model.checks import Check
from rbtrace_py.model.events import Event, RaiseEvent, Unreadable, Value
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import Operand, OperandRole
from rbtrace_py.report.text import replace_undecodable

if TYPE_CHECKING:
    from rbtrace_py.aggregate.slow.spans import Exemplar, SlowPart

Document = dict[str, object]

VERSION = 1
PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100)


def dumps(document: Document) -> str:
    """One line of ASCII JSON, without a newline.

    Bytes that were not UTF-8 are U+FFFD; NaN and infinities are the strings
    ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    return json.dumps(_clean(document), allow_nan=False)


def document(result: Result) -> Document:
    """Return the document of latency, values or count; ``schema`` names the command."""
    return {
        **_head(result.command),
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
        **_cost(result.cost),
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
            name: _value(value) for name, value in span.event.arguments.items()
        },
        "parts": dict(exemplar.parts),
    }


def probes_document(pids: Sequence[int], probes: Sequence[Listed]) -> Document:
    """Return the document of ``probes``; a traced state of None could not be read."""
    return {
        **_head("probes"),
        "pids": list(pids),
        "probes": [_probe(listed) for listed in probes],
    }


def event_document(event: Event) -> Document:
    """One line of ``trace``."""
    names = event.probe.argument_names
    values = list(zip(names, event.values, strict=False))
    cut = [name for name, yes in zip(names, event.truncated, strict=False) if yes]
    return {
        **_head("trace"),
        "time_ns": event.time_ns,
        "pid": event.pid,
        "tid": event.tid,
        "comm": event.comm,
        "probe": event.probe.full_name,
        "arguments": {name: _value(value) for name, value in values},
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
        **_head("trace-end"),
        "count": events,
        "counters": dict(counters),
        "lost": lost(counters),
        **_cost(cost),
    }


def _cost(cost: HitCost | None) -> Document:
    return {} if cost is None else {"cost": cost._asdict()}


def doctor_document(pid: int | None, checks: Sequence[Check]) -> Document:
    """Return the document of ``doctor``; pid None: the machine alone."""
    return {
        **_head("doctor"),
        "pid": pid,
        "checks": [
            {
                "status": check.status,
                "name": check.name,
                "text": check.text,
                "advice": check.advice,
            }
            for check in checks
        ],
    }


def _head(command: str) -> Document:
    return {"schema": f"rbtrace-py/{command}", "version": VERSION}


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


def _probe(listed: Listed) -> Document:
    probe, traced, pids = listed
    return {
        "provider": probe.provider,
        "name": probe.name,
        "role": probe.role.name.lower(),
        "span": probe.span_name,
        "method": probe.method,
        "file": probe.binary.path,
        "sites": len(probe.sites),
        "pids": list(pids),
        "traced": traced,
        "arguments": [_operand(operand) for operand in probe.operands],
    }


def _operand(operand: Operand) -> Document:
    role = operand.role
    return {
        "name": operand.name,
        "type": operand.type.name.lower(),
        "role": "unknown" if role is OperandRole.UNKNOWN else role.name.lower(),
        "size": operand.size,
        "signed": operand.signed,
    }


def _value(value: Value) -> int | float | bool | str | None:
    return None if isinstance(value, Unreadable) else value


def _clean(value: object) -> object:
    if isinstance(value, str):
        return replace_undecodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, dict):
        return dict(_clean_items(value))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _clean_items(items: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in items.items():
        yield replace_undecodable(name), _clean(value)
