"""pprof's profile.proto, gzipped.

The protocol buffer messages are encoded here, because the format needs only two kinds
of fields: numbers (varints) and length-delimited ones. Field numbers come from the
published ``profile.proto``; a test parses the result with it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import Row
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread
from rbtrace_py.report.exchange.rows import clean
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import counted, idle_text

_SECOND = 1_000_000_000
_RUBY, _KERNEL = 1, 2
"""Numbers of the mappings. The kernel's mapping is named as perf names it."""


def varint(number: int) -> bytes:
    """Encode a number, 7 bits per byte, the lowest first; negative ones as 64 bits."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number_field(field: int, number: int) -> bytes:
    """Encode a field with a number. A 0 is left out, as proto3 does."""
    return varint(field << 3) + varint(number) if number else b""


def bytes_field(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed_field(field: int, numbers: Iterable[int]) -> bytes:
    """Encode a repeated field of numbers."""
    return bytes_field(field, b"".join(map(varint, numbers)))


def pprof_bytes(profile: Profile, options: ReportOptions) -> bytes:
    """Return a complete profile. Equal input gives equal bytes."""
    message = _Message(profile, options).encode()
    return gzip.compress(message, mtime=0)


class _Message:
    """A Profile message under construction.

    Samples have a count and, if the rate is known, their time. Weights in nanoseconds
    have only their time, and events only their count or weight.
    """

    def __init__(self, profile: Profile, options: ReportOptions) -> None:
        self._profile = profile
        self._title = options.title or profile.meta.command
        self._strings: dict[str, int] = {"": 0}
        self._locations: dict[tuple[object, ...], int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._tables: list[bytes] = []
        self._has_kernel = False
        rate = profile.counts.statistics.rate
        self._period = round(_SECOND / rate) if rate > 0 else 0

    def encode(self) -> bytes:
        own = self._profile.counts.statistics
        meta = self._profile.meta
        time = ("weight" if meta.argument else meta.mode or "time", "nanoseconds")
        unit = counted(own.unit)
        count = ("weight", "bytes") if unit == "bytes" else (unit, "count")
        types = [time] if own.unit == "ns" else [count]
        if own.unit != "ns" and unit == "samples" and self._period:
            types.append(time)
        has_time = types[-1] == time
        parts = [bytes_field(1, self._type(*kind)) for kind in types]
        parts.extend(
            bytes_field(2, self._sample(row, len(types)))
            for row in self._profile.counts.rows()
        )
        parts.append(bytes_field(3, self._mapping(_RUBY, "ruby")))
        if self._has_kernel:
            parts.append(bytes_field(3, self._mapping(_KERNEL, "[kernel.kallsyms]")))
        parts.extend(self._tables)
        parts.append(number_field(9, own.started_ns))
        parts.append(number_field(10, own.duration_ns))
        parts.append(bytes_field(11, self._type(*types[-1])))
        parts.append(number_field(12, self._period if has_time else 1))
        comments = [clean(self._title)] if self._title else []
        if own.idle:
            comments.append(idle_text(own.idle, own.unit))
        if comments:
            parts.append(packed_field(13, map(self._string, comments)))
        parts.append(number_field(14, self._string(types[-1][0])))
        texts = (text.encode("utf-8", "replace") for text in self._strings)
        parts.extend(bytes_field(6, text) for text in texts)
        return b"".join(parts)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _type(self, name: str, unit: str) -> bytes:
        return number_field(1, self._string(name)) + number_field(2, self._string(unit))

    def _sample(self, row: Row, values: int) -> bytes:
        locations = [self._location(frame) for frame in reversed(row.frames)]
        weights = [row.weight, row.weight * self._period][:values]
        labels = [bytes_field(3, label) for label in self._labels(row)]
        return packed_field(1, locations) + packed_field(2, weights) + b"".join(labels)

    def _labels(self, row: Row) -> Iterable[bytes]:
        thread: RubyThread = row.thread
        yield self._label("state", row.state.name.lower())
        if thread.name or thread.is_main:
            yield self._label("thread", clean(thread.name or "main"))
        yield self._number_label("pid", thread.pid)
        if thread.tid is not None:
            yield self._number_label("tid", thread.tid)

    def _label(self, key: str, text: str) -> bytes:
        return number_field(1, self._string(key)) + number_field(2, self._string(text))

    def _number_label(self, key: str, number: int) -> bytes:
        return number_field(1, self._string(key)) + number_field(3, number)

    def _location(self, frame: Frame) -> int:
        has_place = frame.kind is not FrameKind.C
        line = (frame.line or 0) if has_place else 0
        path = clean(frame.path) if has_place and frame.path else ""
        function = self._function(clean(frame.name), path)
        key = (function, line)
        number = self._locations.get(key)
        if number is None:
            number = self._locations[key] = len(self._locations) + 1
            place = number_field(1, function) + number_field(2, line)
            mapping = _KERNEL if frame.kind is FrameKind.KERNEL else _RUBY
            self._has_kernel |= mapping == _KERNEL
            message = number_field(1, number) + number_field(2, mapping)
            self._tables.append(bytes_field(4, message + bytes_field(4, place)))
        return number

    def _function(self, name: str, path: str) -> int:
        """Return the number of a function, which has no ``system_name``.

        If both names were equal, pprof would demangle the name, and drop text in angle
        brackets: all of ``<main>``.
        """
        key = (name, path)
        number = self._functions.get(key)
        if number is None:
            number = self._functions[key] = len(self._functions) + 1
            texts = number_field(2, self._string(name))
            texts += number_field(4, self._string(path))
            self._tables.append(bytes_field(5, number_field(1, number) + texts))
        return number

    def _mapping(self, number: int, name: str) -> bytes:
        """Encode a mapping that claims to have all names: readers need no symbols."""
        known = b"".join(number_field(field, 1) for field in (7, 8, 9))
        return number_field(1, number) + number_field(5, self._string(name)) + known
