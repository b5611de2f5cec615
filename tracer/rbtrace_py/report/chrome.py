"""Calls as trace events in JSON, which Chrome's and Perfetto's viewers read.

The form is Google's "Trace Event Format": a complete event a call, in microseconds
since the first one, on a track for each of Ruby's stacks. Since the epoch they would
have no room for nanoseconds in a JSON number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from rbtrace_py.aggregate.calls import Happened, Told
from rbtrace_py.report.tracks import Tracks, track_name


def chrome_pieces(calls: Iterable[Told], names: Mapping[int, str]) -> Iterator[str]:
    """One JSON document, in pieces; ``names`` of threads may grow meanwhile."""
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    tracks = Tracks()
    separator = ""
    origin = None
    for told in calls:
        if origin is None:
            origin = told.event.time if told.event.start is None else told.event.start
        number, is_new = tracks.of(told)
        if is_new:
            yield separator + json.dumps(_track(told, number, names))
            separator = ",\n"
        event = _event(told, number, origin)
        if event is not None:
            yield separator + json.dumps(event)
            separator = ",\n"
    yield "]}\n"


def _track(told: Told, number: int, names: Mapping[int, str]) -> dict[str, object]:
    name = track_name(told.event.stack, names)
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": told.pid,
        "tid": number,
        "args": {"name": name},
    }


def _event(told: Told, number: int, origin: int) -> dict[str, object] | None:
    event = told.event
    found: dict[str, object] = {"pid": told.pid, "tid": number}
    if event.what is Happened.LOST:
        found |= {"ph": "i", "s": "t", "cat": "lost"}
        found["ts"] = (event.time - origin) / 1000
        return {**found, "name": f"{event.count} events lost"}
    is_call = event.what in (Happened.RETURNED, Happened.ENDED)
    if event.start is None or not (is_call or event.what is Happened.COLLECTED):
        return None
    found |= {
        "ph": "X",
        "ts": (event.start - origin) / 1000,
        "dur": (event.duration or 0) / 1000,
        "name": told.method.full_name,
        "cat": "call" if is_call else "gc",
    }
    args: dict[str, object] = dict(told.values)
    if told.method.path:
        args |= {"path": told.method.path, "line": told.method.line}
    if args:
        found["args"] = args
    return found
