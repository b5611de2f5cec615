"""Packets of Perfetto's traces: tracks, and slices on them.

The messages are written by hand, as in ``pprof``. Field numbers are those of Perfetto's
published ``trace_packet.proto``, ``track_event.proto`` and ``track_descriptor.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rbtrace_py.report.exchange.pprof import bytes_field, number_field

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS = 1, 2
BEGIN, END, _INSTANT = 1, 2, 3
_TYPE, _NAME_ID, _TRACK_ID, _NAME = 9, 10, 11, 23
_ARGUMENT, _ARGUMENT_NAME, _ARGUMENT_TEXT = 4, 10, 6
_SEQUENCE_FIELD = number_field(_SEQUENCE, 1)
_MOST_RESTS = 1 << 16

Texts = Sequence[tuple[str, str]]
"""Names of arguments and what they are."""


def first_packet() -> bytes:
    """Return what a file begins with."""
    return _packet(number_field(_FLAGS, _CLEARED))


class Packets:
    """Makes the packets of one file; what they share is written once."""

    def __init__(self) -> None:
        self._processes: set[int] = set()
        self._texts: dict[str, int] = {}
        # Of a slice's packet all but its time: the same again and again.
        self._rests: dict[tuple[int, int, str], bytes] = {}

    def described(self, pid: int, name: str, track: int) -> Iterator[bytes]:
        """Describe a track, and its process where that is new."""
        process = _process_uuid(pid)
        if pid not in self._processes:
            self._processes.add(pid)
            message = number_field(1, process) + bytes_field(3, number_field(1, pid))
            yield _packet(bytes_field(_TRACK, message))
        text = name.encode("utf-8", "replace")
        message = number_field(1, track) + bytes_field(2, text)
        yield _packet(bytes_field(_TRACK, message + number_field(5, process)))

    def slice(
        self, time: int, track: int, kind: int, name: str = "", values: Texts = ()
    ) -> bytes:
        """Return a slice's BEGIN or END; values stand beside the name."""
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


def instant(time: int, track: int, text: str) -> bytes:
    """Return a moment on a track."""
    message = number_field(_TYPE, _INSTANT) + number_field(_TRACK_ID, track)
    message += bytes_field(_NAME, text.encode())
    return _packet(number_field(_TIMESTAMP, time) + bytes_field(_EVENT, message))


def _text_field(number: int, text: str) -> bytes:
    return bytes_field(number, text.encode("utf-8", "replace"))


def _packet(fields: bytes) -> bytes:
    return bytes_field(_PACKET, fields + _SEQUENCE_FIELD)
