"""Metadata and losses of a recording: the JSON blocks."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from rbtrace_py.aggregate.sampling import LOSSES, Statistics
from rbtrace_py.model.printable import printable
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.recording.blocks import Damaged

_MAX_JSON = 1 << 20
_MAX_TEXT = 4096
_ALWAYS = ("rounds", "late", "failed")
"""Counters of a LOSSES block even if they are 0."""
_MAX_NUMBER = 1 << 63


_RARE = ("most_calls", "event", "argument", "weights")
"""Fields that are omitted if empty."""


def encode_meta(meta: Meta) -> bytes:
    document = asdict(meta)
    for name in _RARE:
        if not document[name]:
            del document[name]
    return dump_json(document)


def decode_meta(payload: bytes) -> Meta:
    """Decode a META block; missing or malformed fields stay empty; raises Damaged."""
    document = load_json(payload)
    found = {}
    for field in fields(Meta):
        default = field.default
        value = _checked(document.get(field.name), default, field.name)
        found[field.name] = default if value is None else value
    return Meta(**found)  # type: ignore[arg-type]


def _checked(value: object, default: object, name: str) -> object:
    if isinstance(default, str):
        return printable(value[:_MAX_TEXT]) if isinstance(value, str) else None
    if isinstance(default, float) and isinstance(value, float):
        return value if 0 <= value < _MAX_NUMBER else None
    if isinstance(default, float):
        number = _count(value)
        return None if number is None else float(number)
    if isinstance(default, int):
        return _count(value)
    if not isinstance(value, list):
        return None
    if name == "pids":
        return tuple(pid for pid in map(_count, value) if pid is not None)
    return tuple(printable(v[:_MAX_TEXT]) for v in value if isinstance(v, str))


def encode_losses(now: Statistics, before: Statistics) -> bytes:
    """Encode the counters since ``before``, and the time of the last data."""
    counters = {name: getattr(now, name) - getattr(before, name) for name in LOSSES}
    counters = {n: v for n, v in counters.items() if v or n in _ALWAYS}
    return dump_json({"ended_ns": now.ended_ns, "counters": counters})


def decode_losses(payload: bytes) -> Statistics:
    """Decode the statistics of a LOSSES block as far as they are there; Damaged."""
    document = load_json(payload)
    counters = document.get("counters")
    found = Statistics()
    if isinstance(counters, dict):
        for name in LOSSES:
            setattr(found, name, _count(counters.get(name)) or 0)
    found.ended_ns = _count(document.get("ended_ns")) or 0
    return found


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _MAX_NUMBER else None


def dump_json(document: dict[str, object]) -> bytes:
    """Return the payload of a JSON block."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def load_json(payload: bytes) -> dict[str, object]:
    """Return a block's document; raises Damaged."""
    if len(payload) > _MAX_JSON:
        raise Damaged("a description that is too long")
    try:
        document = json.loads(payload, parse_int=_integer)
    except (ValueError, RecursionError):
        raise Damaged("a description that is not JSON") from None
    if not isinstance(document, dict):
        raise Damaged("a description of an unknown kind")
    return document


def _integer(digits: str) -> int:
    # Some versions of Python take minutes to parse a number of a million digits.
    return int(digits) if len(digits) < 24 else -1
