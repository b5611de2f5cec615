"""Serializer of the JSON documents (docs/formats).

The other modules of this package choose the keys of a document, and ``dumps`` writes
it. Each document starts with its schema and version. A new key keeps the version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container
from enum import IntEnum

from rbtrace_py.model.events import Unreadable
from rbtrace_py.report.text import replace_undecodable

Document = dict[str, object]

_VERSION = 1


def head(command: str) -> Document:
    """Return the first keys of a command's documents."""
    return {"schema": f"rbtrace-py/{command}", "version": _VERSION}


def fields(value: object, *names: str, nullable: Container[str] = ()) -> Document:
    """Return attributes of a value as keys of a document.

    A key is the attribute's name without ``is_`` or ``has_``. The key of ``class_name``
    is ``class``.

    Args:
        value: Value whose attributes are written.
        names: Names of the attributes, in the order of the keys.
        nullable: Names of the attributes that are null if they are empty or 0.
    """
    found: Document = {}
    for name in names:
        own = getattr(value, name)
        key = "class" if name == "class_name" else name.removeprefix("is_")
        found[key.removeprefix("has_")] = (own or None) if name in nullable else own
    return found


def dumps(document: Document) -> str:
    """Return a document as one line of ASCII JSON, without a newline.

    Members of an ``IntEnum`` are written as their names in lower case, unreadable
    values as null, bytes that were not UTF-8 as U+FFFD, and NaN and infinities as the
    strings ``NaN``, ``Infinity``, and ``-Infinity``.
    """
    return json.dumps(_plain(document), allow_nan=False)


def _plain(value: object) -> object:
    if type(value) is int:
        return value  # Most values.
    if isinstance(value, str):
        return replace_undecodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, dict):
        return {replace_undecodable(k): _plain(each) for k, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, IntEnum):
        return value.name.lower()
    return None if isinstance(value, Unreadable) else value
