"""Calls as a trace of Perfetto's: slices on a track for each of Ruby's stacks.

What the thread was meanwhile are slices on another track beside it.

The messages are written by hand, as in ``pprof``. Field numbers are those of Perfetto's
published ``trace_packet.proto``, ``track_event.proto`` and ``track_descriptor.proto``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread, Values
from rbtrace_py.aggregate.switches import Span, Switch, SwitchKind, ThreadStates
from rbtrace_py.report.exchange.pprof import bytes_field, number_field
from rbtrace_py.report.exchange.tracks import (
    Timeline,
    Tracks,
    cpu_track_name,
    lost_name,
    span_name,
    track_name,
)

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_TYPE, _NAME_ID, _TRACK_ID, _NAME = 9, 10, 11, 23
_ARGUMENT, _ARGUMENT_NAME, _ARGUMENT_TEXT = 4, 10, 6
_SEQUENCE_FIELD = number_field(_SEQUENCE, 1)
_MOST_RESTS = 1 << 16


def perfetto_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[bytes]:
    """The file, in pieces; ``names`` of threads may grow meanwhile.

    ended_ns: asked at the end, until when it went on
    """
    writer = _Writer(names)
    yield _packet(number_field(_FLAGS, _CLEARED))
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
        self._processes: set[int] = set()
        self._texts: dict[str, int] = {}
        # Of a slice's packet all but its time: the same again and again.
        self._rests: dict[tuple[int, int, str], bytes] = {}
        self._open: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def packets(self, reported: ReportedCall) -> Iterator[bytes]:
        event = reported.event
        track, is_new = self._tracks.of(reported)
        if is_new:
            name = track_name(reported, self._names)
            yield from self._described(reported.pid, name, track)
        # Time does not go back within a track.
        self._last[track] = time = max(event.time, self._last.get(track, 0))
        name = reported.method.full_name
        if event.what is CallEventKind.ENTERED:
            self._open[track] = self._open.get(track, 0) + 1
            yield self._slice(time, track, _BEGIN, name, reported.values)
        elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            if event.start is not None and self._open.get(track):
                self._open[track] -= 1
                yield self._slice(time, track, _END)
        elif event.what is CallEventKind.COLLECTED and event.start is not None:
            yield self._slice(min(event.start, time), track, _BEGIN, name)
            yield self._slice(time, track, _END)
        elif event.what is CallEventKind.LOST:
            yield _instant(time, track, f"{event.count} events lost")

    def switched(self, switch: Switch) -> Iterator[bytes]:
        """End a thread's state; a loss is shown with each of them."""
        known = list(self._states.now) if switch.what is SwitchKind.LOST else []
        yield from self._spans(self._states.feed(switch))
        for thread in known:
            yield from self._described_cpu(thread)
            track, _ = self._tracks.of_cpu(thread)
            yield _instant(switch.time, track, lost_name(switch))

    def _spans(self, spans: Iterable[Span]) -> Iterator[bytes]:
        for span in spans:
            yield from self._described_cpu(span.thread)
            track, _ = self._tracks.of_cpu(span.thread)
            yield self._slice(span.start, track, _BEGIN, span_name(span))
            yield self._slice(span.end, track, _END)

    def end(self, time: int) -> Iterator[bytes]:
        """End all that goes on with the trace."""
        yield from self._spans(self._states.end(time))
        for track, count in self._open.items():
            for _ in range(count):
                yield self._slice(self._last[track], track, _END)

    def _described_cpu(self, thread: Thread) -> Iterator[bytes]:
        track, is_new = self._tracks.of_cpu(thread)
        if is_new:
            name = cpu_track_name(thread, self._names)
            yield from self._described(thread[0], name, track)

    def _described(self, pid: int, name: str, track: int) -> Iterator[bytes]:
        process = _process_uuid(pid)
        if pid not in self._processes:
            self._processes.add(pid)
            message = number_field(1, process) + bytes_field(3, number_field(1, pid))
            yield _packet(bytes_field(_TRACK, message))
        text = name.encode("utf-8", "replace")
        message = number_field(1, track) + bytes_field(2, text)
        yield _packet(bytes_field(_TRACK, message + number_field(5, process)))

    def _slice(
        self, time: int, track: int, kind: int, name: str = "", values: Values = ()
    ) -> bytes:
        key = (track, kind, name)
        if not values and (rest := self._rests.get(key)) is not None:
            return bytes_field(_PACKET, number_field(_TIMESTAMP, time) + rest)
        message = number_field(_TYPE, kind) + number_field(_TRACK_ID, track)
        for expression, value in values:
            annotation = _text_field(_ARGUMENT_NAME, expression)
            annotation += _text_field(_ARGUMENT_TEXT, value)
            message += bytes_field(_ARGUMENT, annotation)
        new, rest = b"", b""
        if name:
            number = self._texts.get(name)
            if number is None:
                number = self._texts[name] = len(self._texts) + 1
                text = bytes_field(2, name.encode("utf-8", "replace"))
                entry = bytes_field(2, number_field(1, number) + text)
                new = bytes_field(_INTERNED, entry)
            message += number_field(_NAME_ID, number)
            rest = number_field(_FLAGS, _NEEDS)
        rest += bytes_field(_EVENT, message) + _SEQUENCE_FIELD
        if not values and len(self._rests) < _MOST_RESTS:
            self._rests[key] = rest
        return bytes_field(_PACKET, number_field(_TIMESTAMP, time) + new + rest)


def _process_uuid(pid: int) -> int:
    """Beyond all tracks' numbers."""
    return (1 << 48) + pid


def _instant(time: int, track: int, text: str) -> bytes:
    message = number_field(_TYPE, _INSTANT) + number_field(_TRACK_ID, track)
    message += bytes_field(_NAME, text.encode())
    return _packet(number_field(_TIMESTAMP, time) + bytes_field(_EVENT, message))


def _text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode("utf-8", "replace"))


def _packet(fields: bytes) -> bytes:
    return bytes_field(_PACKET, fields + _SEQUENCE_FIELD)
