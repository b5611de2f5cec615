"""Reader of the result files of ``latency``, ``count``, and ``values``.

It reads ``--json`` of all three commands, and ``--hlog`` of ``latency``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rbtrace_py.aggregate.hdr import decode
from rbtrace_py.aggregate.histogram import (
    Distribution,
    FloatHistogram,
    Histogram,
    SignedHistogram,
    bucket_bounds,
    bucket_index,
    float_key,
    integer_key,
)
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import GAUGES, Group, Result
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.probes import OperandRole
from rbtrace_py.model.recorded_groups import Key

_SCHEMAS = {f"rbtrace-py/{name}": name for name in ("latency", "count", "values")}
_VERSION = 1
_LONGEST_LINE = 1 << 26
_LARGEST = 1 << 64
_LOG_LINE = re.compile(
    r"(?:Tag=(?P<tag>[^,]*),)?(?P<begin>[\d.]+),(?P<length>[\d.]+),[\d.]+,"
    r"(?P<blob>[A-Za-z0-9+/=]+)"
)
_ESCAPE = re.compile(r"\\(?:u\{([0-9A-F]{1,6})\}|x([0-9A-F]{2})|(.))")
_NAMED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_NAMED |= {"e": "\x1b", "s": " "}
_Place = tuple[str, type, Key, bool]


def read_result(path: str) -> Result:
    """Return the result in a file, the sum of all intervals.

    The series of a log are its tags. The ``slow`` part of a document is ignored.

    Raises:
        BadRecording: It is not a result file, or its results cannot be added.
        OSError: It cannot be read.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        try:
            return _sum(_parts(iter(lambda: file.readline(_LONGEST_LINE), "")))
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise BadRecording(
                f"{path} is neither a recording nor a result",
                "Give a file of `rbtrace-py record`, of `latency`, `count` or `values`"
                " with --json, or of `latency` with --hlog",
            ) from error


def _sum(parts: Iterable[Result]) -> Result:
    found: Result | None = None
    groups: dict[_Place, Group] = {}
    counters: dict[str, int] = {}
    for part in parts:
        found = part if found is None else _joined(found, part)
        for group in part.groups:
            place = (group.series, type(group.key), group.key, group.is_other)
            known = groups.get(place)
            groups[place] = known.plus(group) if known else group
        for name, number in part.counters.items():
            before = 0 if name in GAUGES else counters.get(name, 0)
            counters[name] = before + number
    if found is None:
        raise ValueError("an empty file")
    return replace(found, groups=tuple(groups.values()), counters=counters)


def _joined(one: Result, next_one: Result) -> Result:
    """Join two results without their groups; ValueError if they cannot be added."""
    for name in ("command", "by", "unit", "operand", "filter"):
        if getattr(one, name) != getattr(next_one, name):
            raise ValueError("results of different questions")
    return replace(
        one,
        series=tuple(dict.fromkeys((*one.series, *next_one.series))),
        started_ns=min(one.started_ns, next_one.started_ns),
        ended_ns=max(one.ended_ns, next_one.ended_ns),
    )


def _parts(lines: Iterable[str]) -> Iterator[Result]:
    for line in lines:
        text = line.strip()
        if text.startswith("{"):
            yield _of_document(json.loads(text))
        elif text and text[0] not in '#"':
            yield _of_log(text)


def _of_document(document: Mapping[str, Any]) -> Result:
    command = _SCHEMAS[document["schema"]]
    if document["version"] != _VERSION:
        raise ValueError("another version")
    by, operand = document["by"], document.get("operand")
    filter_ = document.get("filter")
    return Result(
        command,
        tuple(_number(pid) for pid in document.get("pids", ())),
        tuple(str(series) for series in document["series"]),
        _number(document["started_ns"]),
        _number(document["ended_ns"]),
        tuple(_group(group, document) for group in document["groups"]),
        {
            name: _number(number)
            for name, number in document.get("counters", {}).items()
            if name.isidentifier()
        },
        None if by is None else str(by),
        str(document["unit"]),
        None if operand is None else str(operand),
        filter=None if filter_ is None else str(filter_),
    )


def _group(group: Mapping[str, Any], document: Mapping[str, Any]) -> Group:
    key = group["key"]
    if not isinstance(key, Key):
        raise TypeError("a key that is not a scalar")
    distribution: Distribution | None = None
    if _SCHEMAS[document["schema"]] == "latency":
        distribution = _durations(group["buckets"])
    elif "buckets" in group:
        distribution = _values(group["buckets"], group["apart"], document["unit"])
    found = Group(
        str(group["series"]),
        key,
        _number(group["count"]),
        _number(group.get("total") or 0),
        distribution,
        group["other"] is True,
        group["truncated"] is True,
        key_role=OperandRole.OUTCOME if "key_name" in group else OperandRole.ARGUMENT,
    )
    return _method_group(found, group) if "entries" in group else found


def _method_group(own: Group, group: Mapping[str, Any]) -> MethodGroup:
    return MethodGroup(
        own.series,
        own.key,
        own.count,
        own.total,
        own.distribution,
        own=None if group["self"] is None else _number(group["self"]),
        summed=_number(group["sum"]),
        entries=_number(group["entries"]),
        longest=_number(group["max"]),
        has_total=group["total"] is not None,
    )


def _number(value: object) -> int:
    if type(value) is not int or abs(value) >= _LARGEST:
        raise ValueError("an invalid number")
    return value


def _durations(buckets: Sequence[Sequence[Any]]) -> Histogram:
    digits = 2 if all(_has_digits(bucket, 2) for bucket in buckets) else 3
    if digits == 2 and all(_has_digits(bucket, 3) for bucket in buckets):
        digits = 3  # the values are so small that their buckets are exact
    counts: dict[int, int] = {}
    for lowest, _, count in buckets:
        if not 0 <= _number(lowest) < 1 << 63:
            raise ValueError("an invalid bucket")
        index = bucket_index(lowest, digits)
        counts[index] = counts.get(index, 0) + _number(count)
    return Histogram(counts, digits)


def _values(
    buckets: Sequence[Sequence[Any]], apart: Mapping[str, Any], unit: str
) -> Distribution:
    counts = [(lowest, _number(count)) for lowest, _, count in buckets]
    if unit == "float" or any(isinstance(lowest, float) for lowest, _ in counts):
        counts += [(float(name), _number(count)) for name, count in apart.items()]
        return FloatHistogram({float_key(lowest): count for lowest, count in counts})
    if any(abs(_number(lowest)) >= 1 << 63 for lowest, _ in counts):
        raise ValueError("an invalid bucket")
    return SignedHistogram({integer_key(lowest): count for lowest, count in counts})


def _has_digits(bucket: Sequence[Any], digits: int) -> bool:
    lowest, highest, _ = bucket
    if not 0 <= _number(lowest) < 1 << 63:
        return False
    return bucket_bounds(bucket_index(lowest, digits), digits) == (lowest, highest)


def _of_log(text: str) -> Result:
    found = _LOG_LINE.fullmatch(text)
    if not found:
        raise ValueError("an invalid line of a log")
    series = _ESCAPE.sub(_unescaped, found["tag"] or "latency")
    histogram = decode(found["blob"])
    total = round(histogram.mean * histogram.count)
    group = Group(series, None, histogram.count, total, histogram)
    began, lasted = (
        round(float(found[name]) * 1_000_000_000) for name in ("begin", "length")
    )
    return Result("latency", (), (series,), began, began + lasted, (group,), unit="ns")


def _unescaped(found: re.Match[str]) -> str:
    code, byte, named = found.groups()
    if code:
        return chr(int(code, 16))
    if byte:  # of a string that is not UTF-8: map it as ``surrogateescape`` does
        number = int(byte, 16)
        return chr(number if number < 0x80 else 0xDC00 + number)
    return _NAMED.get(named, named)
