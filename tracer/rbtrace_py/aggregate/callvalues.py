"""Decoder of the expression values that the agent's hook writes at a call's entry."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from rbtrace_py.aggregate.calls import Values

_HEAD = struct.Struct("<HB")
_LENGTH = struct.Struct("<H")
_REASONS = {
    1: "(switched off: it took too long three times in a row)",
    2: "(too many were under way)",
    3: "(no stack was left for it)",
    4: "(no memory was left for it)",
}


def values_of(data: bytes, expressions: Sequence[Sequence[str]]) -> Values:
    """Return each expression and its value, as far as the target wrote them.

    Args:
        data: Bytes of the TEXT records that follow an entry.
        expressions: Expressions of each selector; ``data`` has the selector's number.

    Source: docs/agent/memory.md, "Values of expressions".
    """
    if len(data) < _HEAD.size:
        return ()
    number, reason = _HEAD.unpack_from(data)
    if number >= len(expressions):
        return ()
    if reason:
        text = _REASONS.get(reason, "(unknown)")
        return tuple((expression, text) for expression in expressions[number])
    return tuple(zip(expressions[number], _texts(data), strict=False))


def _texts(data: bytes) -> Iterator[str]:
    at = _HEAD.size
    while len(data) - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield data[at : at + length].decode("utf-8", "replace")
        at += length
