"""Timelines as Perfetto's traces: packets of tracks, and of slices on them.

The messages are encoded here, as in ``pprof``. Perfetto publishes the field numbers in
``trace_packet.proto``, ``track_event.proto``, and ``track_descriptor.proto``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rbtrace_py.aggregate.calls import Thread, Values
from rbtrace_py.report.exchange.pprof import bytes_field, number_field
from rbtrace_py.report.exchange.timeline import (
    BEGIN,
    END,
    SLICE,
    TRACK,
    Timeline,
    TimelineEvent,
    timeline_events,
)

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_TYPE, _NAME_ID, _TRACK_ID, _NAME = 9, 10, 11, 23
_ARGUMENT, _ARGUMENT_NAME, _ARGUMENT_TEXT = 4, 10, 6
_SEQUENCE_FIELD = number_field(_SEQUENCE, 1)
_MOST_RESTS = 1 << 16
_FIRST_PROCESS = 1 << 48
"""Identifier of process 0, above all track numbers."""


def perfetto_pieces(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[bytes]:
    """Yield a file in pieces. For the arguments, see ``timeline_events``."""
    return encoded(timeline_events(timeline, names, ended_ns))


def encoded(events: Iterable[TimelineEvent]) -> Iterator[bytes]:
    """Yield a file of events in pieces."""
    packets = _Packets()
    yield _packet(number_field(_FLAGS, _CLEARED))
    for kind, track, time, name, start, _, values, _ in events:
        if kind is TRACK:
            yield from packets.described(track.thread[0], track.name, track.number)
        elif kind is BEGIN:
            yield packets.slice(time, track.number, _BEGIN, name, values)
        elif kind is END:
            yield packets.slice(time, track.number, _END)
        elif kind is SLICE and start is not None:
            yield packets.slice(min(start, time), track.number, _BEGIN, name)
            yield packets.slice(time, track.number, _END)
        else:
            yield _instant(time, track.number, name)


class _Packets:
    """Packets of one file. Shared texts and processes are written once."""

    def __init__(self) -> None:
        self._processes: set[int] = set()
        self._texts: dict[str, int] = {}
        # Packets of slices without their times; they repeat often.
        self._rests: dict[tuple[int, int, str], bytes] = {}

    def described(self, pid: int, name: str, track: int) -> Iterator[bytes]:
        """Describe a track, and its process if it is new."""
        process = _FIRST_PROCESS + pid
        if pid not in self._processes:
            self._processes.add(pid)
            message = number_field(1, process) + bytes_field(3, number_field(1, pid))
            yield _packet(bytes_field(_TRACK, message))
        message = number_field(1, track) + _text_field(2, name)
        yield _packet(bytes_field(_TRACK, message + number_field(5, process)))

    def slice(
        self, time: int, track: int, kind: int, name: str = "", values: Values = ()
    ) -> bytes:
        """Return a BEGIN with its name and values, or an END."""
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
                entry = number_field(1, number) + _text_field(2, name)
                new = bytes_field(_INTERNED, bytes_field(2, entry))
            message += number_field(_NAME_ID, number)
            rest = number_field(_FLAGS, _NEEDS)
        rest += bytes_field(_EVENT, message) + _SEQUENCE_FIELD
        if not values and len(self._rests) < _MOST_RESTS:
            self._rests[key] = rest
        return bytes_field(_PACKET, number_field(_TIMESTAMP, time) + new + rest)


def _instant(time: int, track: int, text: str) -> bytes:
    message = number_field(_TYPE, _INSTANT) + number_field(_TRACK_ID, track)
    message += _text_field(_NAME, text)
    return _packet(number_field(_TIMESTAMP, time) + bytes_field(_EVENT, message))


def _text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode("utf-8", "replace"))


def _packet(fields: bytes) -> bytes:
    return bytes_field(_PACKET, fields + _SEQUENCE_FIELD)
