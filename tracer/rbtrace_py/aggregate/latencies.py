"""Results of ``latency`` read back, from ``--json`` and from ``--hlog`` files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rbtrace_py.aggregate.hdr import decode
from rbtrace_py.aggregate.histogram import Histogram, bucket_bounds, bucket_index
from rbtrace_py.aggregate.tables import printable
from rbtrace_py.errors import BadRecording

_SCHEMA = "rbtrace-py/latency"
_VERSION = 1
_LONGEST_LINE = 1 << 26
_LOG_LINE = re.compile(
    r"(?:Tag=(?P<tag>[^,]*),)?[\d.]+,[\d.]+,[\d.]+,(?P<blob>[A-Za-z0-9+/=]+)"
)


def read_latencies(path: str) -> dict[str, Histogram]:
    """Histograms by ``series`` or ``series/key``, all intervals together.

    Empty names are of logs with one series. BadRecording if it is neither kind of
    file, OSError if it cannot be read.
    """
    found: dict[str, Histogram] = {}
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        try:
            for name, histogram in _parts(
                iter(lambda: file.readline(_LONGEST_LINE), "")
            ):
                known = found.get(name)
                found[name] = known.merge(histogram) if known else histogram
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRecording(
                f"{path} is neither a recording nor a latency result",
                "Give a file of `rbtrace-py record`, or of `latency` with --json or"
                " --hlog",
            ) from error
    return found


def _parts(lines: Iterable[str]) -> Iterable[tuple[str, Histogram]]:
    seen = False
    for line in lines:
        text = line.strip()
        if text.startswith("{"):
            yield from _document(json.loads(text))
        elif text and text[0] not in '#"':
            yield _logged(text)
        seen = seen or bool(text)
    if not seen:
        raise ValueError("an empty file")


def _document(document: Mapping[str, object]) -> Iterable[tuple[str, Histogram]]:
    if document["schema"] != _SCHEMA or document["version"] != _VERSION:
        raise ValueError("another schema")
    groups = document["groups"]
    if not isinstance(groups, list):
        raise TypeError("groups")
    for group in groups:
        name = str(group["series"])
        if document["by"] is not None:
            key = "(other)" if group["other"] else _key(group["key"])
            name = f"{name}/{key}"
        yield printable(name), _histogram(group["buckets"])


def _key(key: object) -> str:
    return {None: "nil", True: "true", False: "false"}.get(key, str(key))  # type: ignore[call-overload,no-any-return]


def _histogram(buckets: list[list[int]]) -> Histogram:
    counts: dict[int, int] = {}
    digits = 2 if all(_has_digits(bucket, 2) for bucket in buckets) else 3
    if digits == 2 and all(_has_digits(bucket, 3) for bucket in buckets):
        digits = 3  # values so small that they are exact
    for lowest, _, count in buckets:
        if (
            type(lowest) is not int
            or not 0 <= lowest < 1 << 63
            or type(count) is not int
        ):
            raise ValueError("a bucket that is none")
        index = bucket_index(lowest, digits)
        counts[index] = counts.get(index, 0) + count
    return Histogram(counts, digits)


def _has_digits(bucket: list[int], digits: int) -> bool:
    lowest, highest, _ = bucket
    if type(lowest) is not int or not 0 <= lowest < 1 << 63:
        return False
    return bucket_bounds(bucket_index(lowest, digits), digits) == (lowest, highest)


def _logged(text: str) -> tuple[str, Histogram]:
    found = _LOG_LINE.fullmatch(text)
    if not found:
        raise ValueError("a line that is none of a log")
    return printable(found["tag"] or ""), decode(found["blob"])
