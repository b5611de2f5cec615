"""Calls as trace events in JSON, which Chrome's and Perfetto's viewers read.

The form is Google's "Trace Event Format": a complete event a call, in microseconds
since the first one, on a track for each of Ruby's stacks; what the thread was meanwhile
is on another beside it. Since the epoch they would have no room for nanoseconds in a
JSON number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread
from rbtrace_py.aggregate.switches import Span, ThreadStates
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.report.exchange.tracks import (
    Timeline,
    Tracks,
    cpu_track_name,
    lost_name,
    span_name,
    track_name,
)

_FIRST = 65_536
"""Events among which the earliest is; switches stand up to a second before calls."""

Event = dict[str, object]


def chrome_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[str]:
    """One JSON document, in pieces; ``names`` of threads may grow meanwhile.

    ended_ns: asked at the end, until when it went on
    """
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    separator = ""
    for event in _events(timeline, names, ended_ns):
        yield separator + json.dumps(event)
        separator = ",\n"
    yield "]}\n"


def _events(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int]
) -> Iterator[Event]:
    rest = iter(timeline)
    first = list(islice(rest, _FIRST))
    writer = _Writer(names, min(map(_begin, first), default=0))
    for each in chain(first, rest):
        if isinstance(each, Switch):
            yield from writer.switched(each)
        else:
            yield from writer.called(each)
    yield from writer.end(ended_ns())


def _begin(each: ReportedCall | Switch) -> int:
    if isinstance(each, Switch):
        return each.time
    return each.event.time if each.event.start is None else each.event.start


class _Writer:
    """origin: ns since the epoch from which times count"""

    def __init__(self, names: Mapping[Thread, str], origin: int) -> None:
        self._names = names
        self._origin = origin
        self._tracks = Tracks()
        self._states = ThreadStates()
        self._ranks: dict[Thread, int] = {}

    def called(self, reported: ReportedCall) -> Iterator[Event]:
        number, is_new = self._tracks.of(reported)
        stack = reported.event.stack
        if is_new:
            # Behind the first one of a thread comes its CPU's.
            place = stack.fiber if stack.fiber > 1 else 0
            name = track_name(reported, self._names)
            yield from self._track(reported.thread, number, name, place)
        event = _event(reported, number, self._origin)
        if event is not None:
            yield event

    def switched(self, switch: Switch) -> Iterator[Event]:
        known = list(self._states.now) if switch.what is SwitchKind.LOST else []
        yield from self._spans(self._states.feed(switch))
        for thread in known:
            yield from self._cpu_track(thread)
            number, _ = self._tracks.of_cpu(thread)
            yield {
                "pid": thread[0],
                "tid": number,
                "ph": "i",
                "s": "t",
                "cat": "lost",
                "ts": (switch.time - self._origin) / 1000,
                "name": lost_name(switch),
            }

    def end(self, time: int) -> Iterator[Event]:
        yield from self._spans(self._states.end(time))

    def _spans(self, spans: Iterable[Span]) -> Iterator[Event]:
        for span in spans:
            yield from self._cpu_track(span.thread)
            number, _ = self._tracks.of_cpu(span.thread)
            yield {
                "pid": span.thread[0],
                "tid": number,
                "ph": "X",
                "ts": (span.start - self._origin) / 1000,
                "dur": (span.end - span.start) / 1000,
                "name": span_name(span),
                "cat": "cpu",
            }

    def _cpu_track(self, thread: Thread) -> Iterator[Event]:
        number, is_new = self._tracks.of_cpu(thread)
        if is_new:
            name = cpu_track_name(thread, self._names)
            yield from self._track(thread, number, name, 1)

    def _track(
        self, thread: Thread, number: int, name: str, place: int
    ) -> Iterator[Event]:
        rank = self._ranks.setdefault(thread, len(self._ranks)) << 16
        for kind, args in (
            ("thread_name", {"name": name}),
            ("thread_sort_index", {"sort_index": rank + place}),
        ):
            yield {
                "ph": "M",
                "name": kind,
                "pid": thread[0],
                "tid": number,
                "args": args,
            }


def _event(reported: ReportedCall, number: int, origin: int) -> Event | None:
    event = reported.event
    found: Event = {"pid": reported.pid, "tid": number}
    if event.what is CallEventKind.LOST:
        found |= {"ph": "i", "s": "t", "cat": "lost"}
        found["ts"] = (event.time - origin) / 1000
        return {**found, "name": f"{event.count} events lost"}
    is_call = event.what in (CallEventKind.RETURNED, CallEventKind.ENDED)
    if event.start is None or not (is_call or event.what is CallEventKind.COLLECTED):
        return None
    found |= {
        "ph": "X",
        "ts": (event.start - origin) / 1000,
        "dur": (event.duration or 0) / 1000,
        "name": reported.method.full_name,
        "cat": "call" if is_call else "gc",
    }
    args: dict[str, object] = dict(reported.values)
    if reported.method.path:
        args |= {"path": reported.method.path, "line": reported.method.line}
    if args:
        found["args"] = args
    return found
