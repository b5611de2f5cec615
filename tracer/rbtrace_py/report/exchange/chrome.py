"""Calls in Google's "Trace Event Format", which Chrome's and Perfetto's viewers read.

The format has one JSON object per call. Times are in microseconds since the first
event, because a JSON number has no room for nanoseconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.model.switches import Switch
from rbtrace_py.report.exchange.timeline import (
    BEGIN,
    END,
    INSTANT,
    TRACK,
    Timeline,
    TimelineEvent,
    timeline_events,
)

_FIRST = 65_536
"""Number of first events that include the earliest one.

A switch can precede a call by up to a second.
"""


def chrome_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[str]:
    """Yield a JSON document in pieces. For the arguments, see ``timeline_events``."""
    rest = iter(timeline)
    first = list(islice(rest, _FIRST))
    origin = min(map(_begin, first), default=0)
    ranks: dict[Thread, int] = {}
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    separator = ""
    for event in timeline_events(chain(first, rest), names, ended_ns):
        for found in _encoded(event, origin, ranks):
            yield separator + json.dumps(found)
            separator = ",\n"
    yield "]}\n"


def _begin(each: ReportedCall | Switch) -> int:
    if isinstance(each, Switch):
        return each.time
    return each.event.time if each.event.start is None else each.event.start


def _encoded(
    event: TimelineEvent, origin: int, ranks: dict[Thread, int]
) -> Iterator[dict[str, object]]:
    kind, track, _, name, start, duration, values, method = event
    place = {"pid": track.thread[0], "tid": track.number}
    if kind is TRACK:
        rank = ranks.setdefault(track.thread, len(ranks)) << 16
        args: dict[str, object] = {"name": track.name}
        yield {"ph": "M", "name": "thread_name", **place, "args": args}
        args = {"sort_index": rank + track.place}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": args}
    elif kind is INSTANT and start is not None:
        at = {"cat": "lost", "ts": (start - origin) / 1000}
        yield {**place, "ph": "i", "s": "t", **at, "name": name}
    elif kind is not BEGIN and start is not None:
        args = dict(values)
        if method is not None and method.path:
            args |= {"path": method.path, "line": method.line}
        yield {
            **place,
            "ph": "X",
            "ts": (start - origin) / 1000,
            "dur": duration / 1000,
            "name": name,
            "cat": "call" if kind is END else "cpu" if method is None else "gc",
            **({"args": args} if args else {}),
        }
