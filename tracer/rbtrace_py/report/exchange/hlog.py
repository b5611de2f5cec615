"""HdrHistogram logs (format 1.3), as other HdrHistogram tools read them.

The log has one line per interval and series. Each line is flushed separately, so
that an aborted program leaves only complete lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

from rbtrace_py.aggregate.hdr import encode
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report.style import ASCII
from rbtrace_py.report.text import escape, key_label

_NOT_IN_TAGS = re.compile(r"[^!-+\--~]")
_LEGEND = (
    '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'
)
_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000


class HlogWriter:
    """Writer of latencies to an open text file; ``started_ns`` is wall time."""

    def __init__(self, file: TextIO, started_ns: int) -> None:
        self._file = file
        self._started_ns = started_ns
        for line in _header(started_ns):
            self._write(line)

    def write(self, result: Result) -> None:
        """Add one interval: one line per group, tagged unless there is one series."""
        for line in hlog_lines(result, self._started_ns):
            self._write(line)

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()


def hlog_lines(result: Result, started_ns: int) -> Iterator[str]:
    """Yield the lines of one interval. A single series without ``--by`` has no tag."""
    if result.by is None and len(result.series) == 1:
        groups = result.groups or (Group(result.series[0], None, 0),)
        yield _line(result, groups[0], started_ns)
        return
    for group in result.groups:
        yield f"Tag={_tag(result, group)},{_line(result, group, started_ns)}"


def _header(started_ns: int) -> Iterator[str]:
    when = datetime.fromtimestamp(started_ns / _SECOND, timezone.utc)
    seconds = _seconds(started_ns)
    yield "#[Logged with rbtrace-py; values are nanoseconds]"
    yield "#[Histogram log format version 1.3]"
    yield f"#[BaseTime: {seconds} (seconds since epoch)]"
    yield f"#[StartTime: {seconds} (seconds since epoch), {when:%Y-%m-%d %H:%M:%S UTC}]"
    yield _LEGEND


def _line(result: Result, group: Group, started_ns: int) -> str:
    histogram = group.distribution or Histogram({})
    if not isinstance(histogram, Histogram):
        raise TypeError(f"{group.series} holds no latencies")
    begin = _seconds(result.started_ns - started_ns)
    length = _seconds(result.ended_ns - result.started_ns)
    highest = f"{histogram.max / _MILLISECOND:.3f}"
    return f"{begin},{length},{highest},{encode(histogram)}"


def _seconds(nanoseconds: int) -> str:
    return f"{max(nanoseconds, 0) / _SECOND:.3f}"


def _tag(result: Result, group: Group) -> str:
    words = [escape(group.series, ASCII)]
    if result.by is not None:
        words.append(key_label(group, ASCII))
    return _NOT_IN_TAGS.sub(_escaped, "/".join(words))


def _escaped(found: re.Match[str]) -> str:
    r"""Return an escape as Ruby writes it, such as ``\s`` and ``\x2C``."""
    return r"\s" if found[0] == " " else f"\\x{ord(found[0]):02X}"
