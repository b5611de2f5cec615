"""Serializer of the JSON documents (docs/formats).

The other modules of this package return plain dicts, and ``dumps`` makes a line of one.
Each document starts with its schema and version. A new key keeps the version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from rbtrace_py.model.events import Unreadable, Value
from rbtrace_py.report.text import replace_undecodable

Document = dict[str, object]

_VERSION = 1


def head(command: str) -> Document:
    """Return the keys that each document starts with."""
    return {"schema": f"rbtrace-py/{command}", "version": _VERSION}


def dumps(document: Document) -> str:
    """One line of ASCII JSON, without a newline.

    Bytes that were not UTF-8 are U+FFFD; NaN and infinities are the strings
    ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    return json.dumps(_clean(document), allow_nan=False)


def _clean(value: object) -> object:
    if isinstance(value, str):
        return replace_undecodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, dict):
        return dict(_clean_items(value))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _clean_items(items: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in items.items():
        yield replace_undecodable(name), _clean(value)


def readable(value: Value) -> int | float | bool | str | None:
    """Return an operand's value, or None if its memory could not be read."""
    return None if isinstance(value, Unreadable) else value
