"""Differences between two results of ``latency``, or of ``count``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report import units
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.fitting import rows_left, rows_shown
from rbtrace_py.report.terminal.histogram import bar, row_labels, times
from rbtrace_py.report.terminal.histogram_rows import rows, without_runs
from rbtrace_py.report.terminal.tables import Column, table
from rbtrace_py.report.text import cut, escape, key_label, pad, pad_left, width

_FACTS = (("p50", 50), ("p90", 90), ("p99", 99))
_BAR = 14
_NAME_ROOM = 60
_MAX_PICTURES = 3
_MAX_ROWS = 30
"""Rows of a table if no terminal limits them."""
_OTHERS = 4
"""Lines of a report besides the rows of its table."""
_SURE_RATES = 1.96
"""Standard deviations by which two equal rates differ by chance in one of 20 cases."""
_SURE_VALUES = 1.4
"""The same for the ranks of two values, each one separately."""
_UNSURE = re.compile(r"(?:%|[×x]\S+|new) \?(?:\s|\x1b|$)")
"""The mark of ``_change``, at the end of a line or before a space or a color."""
_UNBOUNDED = 0.08
"""Probability from which on a percentile may be beyond all values seen."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One row of one result, and the measurement time."""

    group: Group
    seconds: float

    @property
    def histogram(self) -> Distribution:
        return self.group.histogram

    @property
    def count(self) -> int:
        return self.group.count

    @property
    def rate(self) -> float:
        """Number of events per second, or in total if the time is unknown."""
        return self.count / self.seconds

    @property
    def time(self) -> float:
        """Time per second in ns: total time, or self time if a group has no total."""
        group = self.group
        if isinstance(group, MethodGroup) and not group.has_total:
            time = group.summed if group.own is None else group.own
            return time / self.seconds
        return group.total / self.seconds


class _Pair(NamedTuple):
    name: str
    old: _Side
    new: _Side


def result_diff_lines(
    before: Result, after: Result, options: ReportOptions
) -> Iterator[str]:
    """Yield a paragraph per series with its histograms, or a table if there are many.

    If both results have a single series, these are compared whatever their names. A
    ``?`` marks a change that may be chance.

    Args:
        before: Earlier result.
        after: Later result of the same command.
        options: Options of the report.
    """
    style = options.style
    pairs = _pairs(before, after, style)
    is_count = after.command == "count"
    if is_count or len(pairs) > _MAX_PICTURES:
        lines = list(_table(pairs, after, options, is_count))
    else:
        lines = [line for pair in pairs for line in _paragraph(pair, style)]
    yield from lines
    if any(_UNSURE.search(line) for line in lines):
        yield style.dim("  ?  may be chance: too few were seen")


def _pairs(before: Result, after: Result, style: Style) -> list[_Pair]:
    old, new = (_sides(result, style) for result in (before, after))
    if before.by is None and after.by is None and len(old) == len(new) == 1:
        old = dict(zip(new, old.values(), strict=True))
    return [
        _Pair(
            name,
            old.get(name) or _Side(Group("", None, 0), _seconds(before)),
            new.get(name) or _Side(Group("", None, 0), _seconds(after)),
        )
        for name in dict.fromkeys([*old, *new])
    ]


def _sides(result: Result, style: Style) -> dict[str, _Side]:
    """Return rows by names that are safe to show, such as ``series/key``."""
    found: dict[str, Group] = {}
    for group in result.groups:
        name = escape(group.series, style)
        if result.by is not None:
            name = f"{name}/{key_label(group, style)}"
        known = found.get(name)
        found[name] = known.plus(group) if known else group
    return {name: _Side(group, _seconds(result)) for name, group in found.items()}


def _seconds(result: Result) -> float:
    return (result.ended_ns - result.started_ns) / 1e9 or 1.0


# -------------------------------------------------------------------- changes


def _change(before: float, after: float, is_sure: bool, style: Style) -> str:
    """``+36.6 %``, ``×12``, ``new``; with a ``?`` if it may be chance."""
    mark = " " if is_sure else "?"
    if not before:
        return f"new {mark}" if after else ""
    if after >= 10 * before:
        factor = f"{style.pick('×', 'x')}{units.significant(after / before)}"
        return f"{factor} {mark}"
    return f"{100 * (after - before) / before:+.1f} % {mark}"


def _change_of_rate(pair: _Pair, style: Style) -> str:
    old, new = pair.old, pair.new
    chance = sqrt(old.count / old.seconds**2 + new.count / new.seconds**2)
    is_sure = old.rate == new.rate or abs(new.rate - old.rate) > _SURE_RATES * chance
    return _change(old.rate, new.rate, is_sure, style)


def _change_of_percentile(pair: _Pair, percentile: float, style: Style) -> str:
    old, new = pair.old.histogram, pair.new.histogram
    if not old.count or not new.count:
        return ""
    one, two = old.percentile(percentile), new.percentile(percentile)
    low, high = _interval(old, percentile)
    new_low, new_high = _interval(new, percentile)
    is_sure = one == two or new_low > high or low > new_high
    return _change(one, two, is_sure, style)


def _interval(values: Distribution, percentile: float) -> tuple[float, float]:
    """Return the confidence interval of a percentile.

    The number of values below the percentile has a binomial distribution.
    """
    count, part = values.count, percentile / 100
    rank, spread = count * part, _SURE_VALUES * sqrt(count * part * (1 - part))
    low, high = max(rank - spread, 1), min(rank + spread, count)
    is_low_known = (1 - part) ** count < _UNBOUNDED
    is_high_known = part**count < _UNBOUNDED
    return (
        values.percentile(100 * low / count) if is_low_known else float("-inf"),
        values.percentile(100 * high / count) if is_high_known else float("inf"),
    )


# ---------------------------------------------------------------------- table


def _table(
    pairs: list[_Pair], result: Result, options: ReportOptions, is_count: bool
) -> Iterator[str]:
    """Yield rows by time per second, or events per second, greatest change first."""
    style = options.style

    def size(side: _Side) -> float:
        return side.rate if is_count else side.time

    found = sorted(pairs, key=lambda pair: -abs(size(pair.new) - size(pair.old)))
    limit = options.rows
    if limit is None and not style.height:
        limit = _MAX_ROWS
    shown = rows_shown(len(found), limit, style, _OTHERS)
    title = "events per second" if is_count else "time per second"
    prefix = ""
    if result.by is not None and len(result.series) == 1:
        series = escape(result.series[0], style)
        title, prefix = f"{series}: {title}", f"{series}/"
    yield style.bold(cut(title, style.width, style))
    yield ""
    columns = _count_columns(style) if is_count else _time_columns(style)

    def name(pair: _Pair) -> str:
        return pair.name.removeprefix(prefix)

    for line in table(found[:shown], result.by or "", name, columns, style):
        yield line.rstrip()
    yield from rows_left(shown, len(found), "smaller changes", style)


def _count_columns(style: Style) -> list[Column[_Pair]]:
    def rate(side: _Side) -> str:
        return units.significant(side.rate)

    return [
        Column("before", lambda pair: rate(pair.old)),
        Column("after", lambda pair: rate(pair.new)),
        Column("change  ", lambda pair: _change_of_rate(pair, style)),
    ]


def _time_columns(style: Style) -> list[Column[_Pair]]:
    def time(nanoseconds: float) -> str:
        return units.duration(nanoseconds, style)

    def difference(pair: _Pair) -> str:
        by = pair.new.time - pair.old.time
        return f"{'-' if by < 0 else '+'}{time(abs(by))}"

    return [
        Column("before", lambda pair: time(pair.old.time)),
        Column("after", lambda pair: time(pair.new.time)),
        Column("change", difference),
        Column("calls  ", lambda pair: _change_of_rate(pair, style)),
        Column("p50  ", lambda pair: _change_of_percentile(pair, 50, style)),
    ]


# ------------------------------------------------------------------ paragraphs


def _paragraph(pair: _Pair, style: Style) -> Iterator[str]:
    yield style.bold(cut(pair.name, _NAME_ROOM, style))
    yield from _facts(pair, style)
    yield ""
    yield from _picture(pair.old.histogram, pair.new.histogram, style)
    yield ""


def _facts(pair: _Pair, style: Style) -> Iterator[str]:
    _, old, new = pair
    yield _line("", style.dim("before".rjust(12)), style.dim("after".rjust(12)))
    counts = [units.format_count(side.count).rjust(12) for side in (old, new)]
    yield _line("count", counts[0], counts[1])
    rates = [f"{units.significant(side.rate)}/s".rjust(12) for side in (old, new)]
    yield _line("rate", rates[0], rates[1], _change_of_rate(pair, style))
    for name, percentile in _FACTS:
        one, two = (side.histogram.percentile(percentile) for side in (old, new))
        paint: Callable[[str], str] = style.red if two > one else style.green
        if one == two:
            paint = style.dim
        change = _change_of_percentile(pair, percentile, style)
        cells = _cell(old, one, style), _cell(new, two, style)
        yield _line(name, *cells, change, paint)
    most = [_cell(side, side.histogram.max, style) for side in (old, new)]
    yield _line("max", most[0], most[1])


def _line(
    name: str,
    before: str,
    after: str,
    change: str = "",
    paint: Callable[[str], str] = str,
) -> str:
    change = paint(change.rjust(12).rstrip()) if change else ""
    return f"  {name.ljust(6)}{before}{after}  {change}".rstrip()


def _cell(side: _Side, value: float, style: Style) -> str:
    is_known = bool(side.histogram.count)
    return pad_left(units.duration(value, style) if is_known else "-", 12)


def _picture(old: Distribution, new: Distribution, style: Style) -> Iterator[str]:
    """Yield both histograms in the same rows, as shares of each."""
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


def _fill(lows: list[float], histogram: Distribution) -> list[int]:
    counts = [0] * len(lows)
    for _, high, count in histogram.buckets():
        counts[max(bisect_right(lows, high) - 1, 0)] += count
    return counts
