"""Timelines as Perfetto's traces: slices on tracks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.report.exchange import perfetto_packets as p
from rbtrace_py.report.exchange.timeline import (
    BEGIN,
    END,
    SLICE,
    TRACK,
    Timeline,
    TimelineEvent,
    timeline_events,
)


def perfetto_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[bytes]:
    """Yield a file in pieces; for the arguments see ``timeline_events``."""
    return encoded(timeline_events(timeline, names, ended_ns))


def encoded(events: Iterable[TimelineEvent]) -> Iterator[bytes]:
    """Yield a file of events in pieces."""
    packets = p.Packets()
    yield p.first_packet()
    for kind, track, time, name, start, _, values, _ in events:
        if kind is TRACK:
            yield from packets.described(track.thread[0], track.name, track.number)
        elif kind is BEGIN:
            yield packets.slice(time, track.number, p.BEGIN, name, values)
        elif kind is END:
            yield packets.slice(time, track.number, p.END)
        elif kind is SLICE and start is not None:
            yield packets.slice(min(start, time), track.number, p.BEGIN, name)
            yield packets.slice(time, track.number, p.END)
        else:
            yield p.instant(time, track.number, name)
