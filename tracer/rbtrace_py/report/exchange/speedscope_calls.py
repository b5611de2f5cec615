"""Calls in speedscope's file format: an evented profile for each of Ruby's stacks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report.exchange.rows import printable
from rbtrace_py.report.exchange.speedscope import Document, file_pieces, frame_document
from rbtrace_py.report.exchange.timeline import (
    BEGIN,
    END,
    SLICE,
    TRACK,
    Track,
    timeline_events,
)

_CLOSE = 1 << 62
"""Added to the number of a frame that closes."""


@dataclass(slots=True)
class _Profile:
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
        self.add(time, self.open.pop() + _CLOSE)


def evented_pieces(
    calls: Iterable[ReportedCall], names: Mapping[Thread, str], title: str
) -> Iterator[str]:
    """Yield a JSON document in pieces; stacks with the most events come first.

    Args:
        calls: Events of calls, in order.
        names: Names of threads, which may grow meanwhile.
        title: Title of the document.
    """
    frames: dict[CalledMethod, int] = {}
    tracks = _gather(calls, names, frames)
    start = min((track.times[0] for track in tracks), default=0)
    profiles = (_profile(track, start) for track in tracks)
    return file_pieces(printable(title or "Ruby"), map(_frame, frames), profiles)


def _gather(
    calls: Iterable[ReportedCall],
    names: Mapping[Thread, str],
    frames: dict[CalledMethod, int],
) -> list[_Profile]:
    tracks: dict[Track, _Profile] = {}
    for kind, track, _, _, start, duration, _, method in timeline_events(calls, names):
        if kind is TRACK:
            tracks[track] = _Profile(track.name)
            continue
        profile = tracks[track]
        if kind in (BEGIN, SLICE) and start is not None and method is not None:
            profile.enter(start, frames.setdefault(method, len(frames)))
        if kind in (END, SLICE):
            profile.leave(0 if start is None else start + duration)
    found = filter(lambda profile: profile.times, tracks.values())
    return sorted(found, key=lambda profile: -len(profile.times))


def _frame(method: CalledMethod) -> Document:
    if method.kind is MethodKind.C:
        return frame_document(method.full_name, "(C)", None)
    line = method.line if method.path else None
    return frame_document(method.full_name, method.path or "", line)


def _profile(track: _Profile, start: int) -> Document:
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
