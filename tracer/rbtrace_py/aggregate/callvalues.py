"""Values of expressions in recordings: behind the table of a block of CALLS."""

from __future__ import annotations

import json

from rbtrace_py.aggregate.blocks import Damaged, pack_columns, unpack_columns
from rbtrace_py.aggregate.calls import Values
from rbtrace_py.aggregate.tables import printable

COLUMNS = "II"
"""Row of the call's entry in the block, and bytes of its values."""
_FULL = 1 << 22
"""Bytes of a block's, before it is too large."""


class Packer:
    """Gathers those of a block."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._texts: list[bytes] = []
        self._size = 0

    def add(self, row: int, values: Values) -> None:
        text = json.dumps(values).encode()
        self._rows.append(row)
        self._texts.append(text)
        self._size += len(text)

    @property
    def is_full(self) -> bool:
        return self._size >= _FULL

    def take(self) -> bytes:
        """Return the values behind the table, perhaps none, and begin anew."""
        rows, texts = self._rows, self._texts
        self._rows, self._texts, self._size = [], [], 0
        if not rows:
            return b""
        return pack_columns(COLUMNS, [rows, map(len, texts)]) + b"".join(texts)


def unpack(data: bytes) -> dict[int, Values]:
    """By row; of recordings that have none nothing. Raises Damaged."""
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
