"""Values of expressions at a call's entry: as the hook and as recordings have them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence

from rbtrace_py.aggregate.blocks import Damaged, unpack_columns
from rbtrace_py.aggregate.calls import Values
from rbtrace_py.aggregate.tables import printable

COLUMNS = "II"
"""Row of the call's entry in a block of CALLS, and bytes of its values."""

_HEAD = struct.Struct("<HB")
_LENGTH = struct.Struct("<H")
_REASONS = {
    1: "(switched off: it took too long three times in a row)",
    2: "(too many were under way)",
    3: "(no stack was left for it)",
    4: "(no memory was left for it)",
}


def values_of(data: bytes, expressions: Sequence[Sequence[str]]) -> Values:
    """Each expression and its value, as far as what the target wrote has them.

    data: of the records behind an entry (docs/agent/memory.md, "Values of expressions")
    expressions: of each selector, of which the target says the number
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


def unpack(data: bytes) -> dict[int, Values]:
    """Return the values behind a table of CALLS, by row; raises Damaged."""
    if not data:
        return {}
    (rows, sizes), texts = unpack_columns(COLUMNS, data)
    found = {}
    at = 0
    for row, size in zip(rows, sizes, strict=True):
        found[row] = _values(texts[at : at + size])
        at += size
    return found


def _values(text: bytes) -> Values:
    try:
        pairs = json.loads(text)
        values = tuple((expression, value) for expression, value in pairs)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged("values that are none") from error
    if not all(isinstance(each, str) for pair in values for each in pair):
        raise Damaged("values that are none")
    return tuple((printable(name), printable(value)) for name, value in values)
