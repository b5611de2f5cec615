"""Calls in speedscope's file format: an evented profile for each of Ruby's stacks."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rbtrace_py import __version__
from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report.exchange.rows import printable
from rbtrace_py.report.exchange.speedscope import SCHEMA
from rbtrace_py.report.exchange.tracks import Tracks, track_name

_CLOSE = 1 << 62
"""Added to the number of a frame that is left."""


@dataclass(slots=True)
class _Track:
    name: str
    open: list[int] = field(default_factory=list)
    times: array[int] = field(default_factory=lambda: array("q"))
    frames: array[int] = field(default_factory=lambda: array("q"))

    def add(self, time: int, frame: int) -> None:
        last = self.times[-1] if self.times else 0
        self.times.append(max(time, last))
        self.frames.append(frame)

    def enter(self, time: int, frame: int) -> None:
        self.open.append(frame)
        self.add(time, frame)

    def leave(self, time: int) -> None:
        if self.open:
            self.add(time, self.open.pop() + _CLOSE)


def evented_pieces(
    calls: Iterable[ReportedCall], names: Mapping[Thread, str], title: str
) -> Iterator[str]:
    """One JSON document, in pieces; stacks with the most events come first."""
    frames: dict[CalledMethod, int] = {}
    tracks = _gather(calls, names, frames)
    start = min((track.times[0] for track in tracks), default=0)
    head = {
        "$schema": SCHEMA,
        "exporter": f"rbtrace-py {__version__}",
        "name": printable(title or "Ruby"),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(method) for method in frames]},
    }
    yield f'{json.dumps(head)[:-1]}, "profiles": ['
    for number, track in enumerate(tracks):
        yield "," * bool(number) + json.dumps(_profile(track, start))
    yield "]}\n"


def _gather(
    calls: Iterable[ReportedCall],
    names: Mapping[Thread, str],
    frames: dict[CalledMethod, int],
) -> list[_Track]:
    numbers = Tracks()
    tracks: list[_Track] = []
    for reported in calls:
        number, is_new = numbers.of(reported)
        if is_new:
            tracks.append(_Track(track_name(reported, names)))
        _take(tracks[number - 1], reported, frames)
    for track in tracks:
        while track.open:
            track.leave(track.times[-1])
    return sorted((t for t in tracks if t.times), key=lambda t: -len(t.times))


def _take(
    track: _Track, reported: ReportedCall, frames: dict[CalledMethod, int]
) -> None:
    event = reported.event
    if event.what is CallEventKind.ENTERED:
        track.enter(event.time, frames.setdefault(reported.method, len(frames)))
    elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
        if event.start is not None:
            track.leave(event.time)
    elif event.what is CallEventKind.COLLECTED and event.start is not None:
        track.enter(event.start, frames.setdefault(reported.method, len(frames)))
        track.leave(event.time)


def _frame(method: CalledMethod) -> dict[str, object]:
    found: dict[str, object] = {"name": printable(method.full_name)}
    if method.kind is MethodKind.C:
        found["file"] = "(C)"
    elif method.path:
        found["file"] = printable(method.path)
        if method.line is not None:
            found["line"] = method.line
    return found


def _profile(track: _Track, start: int) -> dict[str, object]:
    return {
        "type": "evented",
        "name": printable(track.name),
        "unit": "nanoseconds",
        "startValue": track.times[0] - start,
        "endValue": track.times[-1] - start,
        "events": [
            {
                "type": "C" if frame >= _CLOSE else "O",
                "frame": frame % _CLOSE,
                "at": time - start,
            }
            for time, frame in zip(track.times, track.frames, strict=True)
        ],
    }
