"""Calls as a trace of Perfetto's: slices on a track for each of Ruby's stacks.

What the thread was meanwhile are slices on another track beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread
from rbtrace_py.aggregate.switches import Span, ThreadStates
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.report.exchange.perfetto_packets import (
    BEGIN,
    END,
    Packets,
    first_packet,
    instant,
)
from rbtrace_py.report.exchange.tracks import (
    Timeline,
    Tracks,
    cpu_track_name,
    lost_name,
    span_name,
    track_name,
)


def perfetto_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[bytes]:
    """The file, in pieces; ``names`` of threads may grow meanwhile.

    ended_ns: asked at the end, until when it went on
    """
    writer = _Writer(names)
    yield first_packet()
    for each in timeline:
        if isinstance(each, Switch):
            yield from writer.switched(each)
        else:
            yield from writer.packets(each)
    yield from writer.end(ended_ns())


class _Writer:
    """open: how many slices of each track have no end yet."""

    def __init__(self, names: Mapping[Thread, str]) -> None:
        self._names = names
        self._tracks = Tracks()
        self._states = ThreadStates()
        self._packets = Packets()
        self._open: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def packets(self, reported: ReportedCall) -> Iterator[bytes]:
        event = reported.event
        track, is_new = self._tracks.of(reported)
        if is_new:
            name = track_name(reported, self._names)
            yield from self._packets.described(reported.pid, name, track)
        # Time does not go back within a track.
        self._last[track] = time = max(event.time, self._last.get(track, 0))
        name = reported.method.full_name
        if event.what is CallEventKind.ENTERED:
            self._open[track] = self._open.get(track, 0) + 1
            yield self._packets.slice(time, track, BEGIN, name, reported.values)
        elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            if event.start is not None and self._open.get(track):
                self._open[track] -= 1
                yield self._packets.slice(time, track, END)
        elif event.what is CallEventKind.COLLECTED and event.start is not None:
            yield self._packets.slice(min(event.start, time), track, BEGIN, name)
            yield self._packets.slice(time, track, END)
        elif event.what is CallEventKind.LOST:
            yield instant(time, track, f"{event.count} events lost")

    def switched(self, switch: Switch) -> Iterator[bytes]:
        """End a thread's state; a loss is shown with each of them."""
        known = list(self._states.now) if switch.what is SwitchKind.LOST else []
        yield from self._spans(self._states.feed(switch))
        for thread in known:
            yield from self._described_cpu(thread)
            track, _ = self._tracks.of_cpu(thread)
            yield instant(switch.time, track, lost_name(switch))

    def _spans(self, spans: Iterable[Span]) -> Iterator[bytes]:
        for span in spans:
            yield from self._described_cpu(span.thread)
            track, _ = self._tracks.of_cpu(span.thread)
            yield self._packets.slice(span.start, track, BEGIN, span_name(span))
            yield self._packets.slice(span.end, track, END)

    def end(self, time: int) -> Iterator[bytes]:
        """End all that goes on with the trace."""
        yield from self._spans(self._states.end(time))
        for track, count in self._open.items():
            for _ in range(count):
                yield self._packets.slice(self._last[track], track, END)

    def _described_cpu(self, thread: Thread) -> Iterator[bytes]:
        track, is_new = self._tracks.of_cpu(thread)
        if is_new:
            name = cpu_track_name(thread, self._names)
            yield from self._packets.described(thread[0], name, track)
