"""Two results of ``latency``: what became faster, what slower."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from rbtrace_py.aggregate.histogram import Distribution, Histogram
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.histogram import bar, row_labels, times
from rbtrace_py.report.terminal.histogram_rows import rows, without_runs
from rbtrace_py.report.text import cut, escape, pad, pad_left, width

_FACTS = (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
_BAR = 14
_NAME_ROOM = 60
_MAX_PICTURES = 10


def latency_diff_lines(
    before: Mapping[str, Histogram], after: Mapping[str, Histogram], style: Style
) -> Iterator[str]:
    """A paragraph for each name: count and percentiles, and the histograms.

    One series in both files is the same one, whatever it is called.
    """
    if len(before) == 1 and len(after) == 1:
        (name,) = after
        before = {name: next(iter(before.values()))}
    names = list(dict.fromkeys([*before, *after]))
    nothing = Histogram({})
    for name in names:
        yield style.bold(cut(escape(name or "latency", style), _NAME_ROOM, style))
        pair = before.get(name, nothing), after.get(name, nothing)
        yield from _facts(*pair, style)
        if len(names) <= _MAX_PICTURES:
            yield ""
            yield from _picture(*pair, style)
        yield ""


def _facts(old: Histogram, new: Histogram, style: Style) -> Iterator[str]:
    yield _line("", style.dim("before".rjust(12)), style.dim("after".rjust(12)), "")
    yield _line(
        "count",
        units.format_count(old.count).rjust(12),
        units.format_count(new.count).rjust(12),
        _change(old.count, new.count),
    )
    for name, percentile in _FACTS:
        one, two = old.percentile(percentile), new.percentile(percentile)
        change = _change(one, two) if old.count and new.count else ""
        paint = style.red if two > one else style.green
        if one == two:
            paint = style.dim
        yield _line(name, _cell(old, one, style), _cell(new, two, style), paint(change))


def _line(name: str, before: str, after: str, change: str) -> str:
    return f"  {name.ljust(6)}{before}{after}  {change}".rstrip()


def _cell(histogram: Distribution, value: float, style: Style) -> str:
    return pad_left(units.duration(value, style) if histogram.count else "-", 12)


def _change(before: float, after: float) -> str:
    if not before:
        return ""
    change = 100 * (after - before) / before
    return f"{change:+.1f} %".rjust(10)


def _picture(old: Histogram, new: Histogram, style: Style) -> Iterator[str]:
    """Both histograms in the same rows, each as shares of its own."""
    found = without_runs(rows(old.merge(new)))
    if not found:
        return
    labels = row_labels(found, times(style), style)
    lows = [row.low for row in found]
    sides = [_fill(lows, old), _fill(lows, new)]
    room = max(map(width, labels))
    most = [max(side) for side in sides]
    heading = f"{'before'.rjust(7)}{' ' * (_BAR + 2)}{'after'.rjust(7)}"
    yield f"  {' ' * room}{style.dim(heading)}"
    for label, *counts in zip(labels, *sides, strict=True):
        line = f"  {style.dim(pad_left(label, room))}"
        for count, highest, of in zip(counts, most, (old, new), strict=True):
            drawn = bar(count, highest, _BAR, style) if count else ""
            line += units.share(count, of.count).rjust(7) + "  " + pad(drawn, _BAR)
        yield line.rstrip()


def _fill(lows: list[float], histogram: Histogram) -> list[int]:
    counts = [0] * len(lows)
    for _, high, count in histogram.buckets():
        counts[max(bisect_right(lows, high) - 1, 0)] += count
    return counts
