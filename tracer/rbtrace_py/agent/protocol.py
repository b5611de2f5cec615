"""The agent's frames and values as bytes (docs/agent/protocol.md), version 1.

The agent's bytes are untrusted. This module checks every length and number, bounds the
size of every map, and escapes every string except the program's own data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.text import safe_text

Value = None | bool | int | float | str | bytes | Sequence[Any] | Mapping[str, Any]
Map = dict[str, Any]

VERSION = 1
MAGIC = "rbtrace-agent"
MAX_PAYLOAD = 65_536
MAX_REQUEST = 16 << 20
"""Maximum bytes of a request's map, as in the agent."""
MAX_REPLY = 8 << 20
"""Maximum bytes of a map from the agent, as in the agent."""
_DEPTH = 16
_HEAD = struct.Struct("<IBBHI")
HEAD_SIZE = _HEAD.size
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")


class BrokenAgent(RbtraceError):
    """The agent sent a malformed answer or none; the connection is unusable."""


class MalformedAnswer(BrokenAgent):
    """The agent sent a malformed answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"malformed answer from the agent: {detail}")


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of a map from the agent.

    Attributes:
        size: Bytes of the map.
        values: Maximum number of values. One byte can become fifty bytes in Python.
        is_data: True if its strings are the program's data, such as names and values.
            They stay unchanged, and reports escape them. All other strings are the
            agent's own words, which ``decode_map`` escapes.
    """

    size: int
    values: int
    is_data: bool = False


SMALL = Bound(MAX_PAYLOAD, 4096)
_BOUNDS = {
    "arm": Bound(1 << 20, 8192),
    "backtraces": Bound(MAX_REPLY, 1 << 18, is_data=True),
    "disarm": Bound(SMALL.size, SMALL.values, is_data=True),
    "eval": Bound(MAX_REPLY, 1 << 18, is_data=True),
    "names": Bound(MAX_REPLY, 1 << 16, is_data=True),
    "threads": Bound(MAX_REPLY, 1 << 18, is_data=True),
}
"""Bounds of answers that are large or that contain data of the program."""
_METHOD_SIZE, _METHOD_VALUES = 512, 8
"""Bounds per method in the event ``exit``."""


def bound_of(command: str) -> Bound:
    """Return the bound of an answer to ``command``."""
    return _BOUNDS.get(command, SMALL)


def bound_of_exit(methods: int) -> Bound:
    """Return the bound of the event ``exit`` if ``methods`` methods were requested."""
    return Bound(
        SMALL.size + methods * _METHOD_SIZE,
        SMALL.values + methods * _METHOD_VALUES,
        is_data=True,
    )


class FrameType(IntEnum):
    """The type of a frame."""

    REQUEST = 1
    DATA = 2
    REPLY = 3
    ERROR = 4
    EVENT = 5
    CANCEL = 6


class Channel(IntEnum):
    """The stream to which the bytes of a DATA frame belong."""

    MAP = 0
    STDOUT = 1
    STDERR = 2
    FILE = 3


_FROM_AGENT = (FrameType.DATA, FrameType.REPLY, FrameType.ERROR, FrameType.EVENT)


@dataclass(frozen=True, slots=True)
class Head:
    """The 12 bytes before a payload of ``length`` bytes.

    ``flags`` is the channel of a DATA frame. In other frames it is 1 if the map was
    sent in DATA frames.
    """

    length: int
    type: FrameType
    flags: int
    request: int


def parse_head(data: bytes) -> Head:
    """Parse the head of a frame; raises MalformedAnswer if no agent sends it."""
    length, kind, flags, zero, request = _HEAD.unpack(data)
    if kind not in _FROM_AGENT or zero:
        raise MalformedAnswer("no such frame")
    if length > MAX_PAYLOAD:
        raise MalformedAnswer(f"a frame of {length} bytes")
    if flags > (Channel.FILE if kind == FrameType.DATA else 1):
        raise MalformedAnswer("a frame with unknown flags")
    if length and flags and kind != FrameType.DATA:
        raise MalformedAnswer("a frame with two payloads")
    return Head(length, FrameType(kind), flags, request)


def pack_request(number: int, arguments: Map) -> bytes:
    """Return the frames of a request; raises UsageError if it is too long."""
    body = encode(arguments)
    if len(body) > MAX_REQUEST:
        raise UsageError(
            f"a request of {len(body)} bytes is too long for the agent",
            f"Load a file in the process instead: the limit is {MAX_REQUEST} bytes",
        )
    if len(body) <= MAX_PAYLOAD:
        return _frame(FrameType.REQUEST, 0, number, body)
    pieces = [body[at : at + MAX_PAYLOAD] for at in range(0, len(body), MAX_PAYLOAD)]
    frames = [_frame(FrameType.DATA, Channel.MAP, number, piece) for piece in pieces]
    return b"".join([*frames, _frame(FrameType.REQUEST, 1, number, b"")])


def pack_cancel(number: int) -> bytes:
    """Return the frame that cancels request ``number``."""
    return _frame(FrameType.CANCEL, 0, number, b"")


def _frame(kind: FrameType, flags: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), kind, flags, 0, number) + payload


def encode(value: Value) -> bytes:
    """Encode a value; characters that are not valid UTF-8 (surrogates) become ``?``."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i" + _I64.pack(value)
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, str):
        return b"s" + _sized(value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return b"b" + _sized(value)
    if isinstance(value, Mapping):
        pairs = (_sized(key.encode()) + encode(item) for key, item in value.items())
        return b"m" + _U32.pack(len(value)) + b"".join(pairs)
    return b"a" + _U32.pack(len(value)) + b"".join(map(encode, value))


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def decode_map(
    data: bytes | bytearray, values: int = SMALL.values, is_data: bool = True
) -> Map:
    """Decode the map in ``data``.

    Args:
        data: Exactly one map.
        values: Maximum number of values in it.
        is_data: False to escape its strings; see ``Bound``.

    Raises:
        MalformedAnswer: ``data`` is not such a map.
    """
    reader = _Reader(memoryview(data), values, is_data)
    value = reader.value(1)
    if not isinstance(value, dict) or not reader.is_done():
        raise MalformedAnswer("not exactly one map")
    return value


class _Reader:
    """Decodes values from untrusted bytes."""

    def __init__(self, data: memoryview, values: int, is_data: bool) -> None:
        self._data = data
        self._at = 0
        self._left = values
        self._is_data = is_data

    def is_done(self) -> bool:
        return self._at == len(self._data)

    def value(self, depth: int) -> Any:
        """Return the next value; ``depth`` is 1 for the outermost."""
        self._left -= 1
        if depth > _DEPTH or self._left < 0:
            raise MalformedAnswer("a map that is too deep or too large")
        match bytes(self._next_bytes(1)):
            case b"n":
                return None
            case b"t":
                return True
            case b"f":
                return False
            case b"i":
                return _I64.unpack(self._next_bytes(8))[0]
            case b"d":
                return _DOUBLE.unpack(self._next_bytes(8))[0]
            case b"s":
                text = self._text()
                return text if self._is_data else safe_text(text.encode())
            case b"b":
                return bytes(self._next_bytes(self._length()))
            case b"a":
                return [self.value(depth + 1) for _ in range(self._number(1))]
            case b"m":
                return self._map(depth)
        raise MalformedAnswer("a value of unknown type")

    def _map(self, depth: int) -> Map:
        pairs: Map = {}
        for _ in range(self._number(5)):
            key = self._text()
            if key in pairs:
                raise MalformedAnswer("a duplicate map key")
            pairs[key] = self.value(depth + 1)
        return pairs

    def _text(self) -> str:
        try:
            return str(self._next_bytes(self._length()), "utf-8")
        except UnicodeDecodeError:
            raise MalformedAnswer("a string that is not UTF-8") from None

    def _number(self, least: int) -> int:
        """Read the number of items that take at least ``least`` bytes each."""
        number = self._length()
        if number * least > len(self._data) - self._at:
            raise MalformedAnswer("a truncated value")
        return number

    def _length(self) -> int:
        number: int = _U32.unpack(self._next_bytes(4))[0]
        return number

    def _next_bytes(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._data):
            raise MalformedAnswer("a truncated value")
        self._at, start = end, self._at
        return self._data[start:end]
