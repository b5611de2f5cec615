"""Tables of ``--by``, and of counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.histogram import Notation
from rbtrace_py.report.text import cut, escape, fitted, key_label, lines_of, pad, width

Row = TypeVar("Row")
Sort = Literal["count", "total"]

_INDENT = "  "
_GAP = "  "
_SHORTEST_KEY = 8
_WIDEST_KEY = 200
"""Columns of names that are whole; a line with a longer one is longer."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A heading, and what stands under it for a row."""

    heading: str
    cell: Callable[[Row], str]


def table(
    groups: Sequence[Row],
    heading: str,
    label: Callable[[Row], str],
    columns: Sequence[Column[Row]],
    style: Style,
    shorten: Callable[[str, int, Style], str] = cut,
) -> Iterator[str]:
    """A heading line and a line a group, the first column shortened to fit.

    Where names are whole, the column is as wide as the longest, within a limit.
    shorten: a label for so many columns; further lines of it get lines of their own
    """
    cells = [[column.cell(group) for column in columns] for group in groups]
    widths = [
        max(len(column.heading), *(len(row[place]) for row in cells))
        for place, column in enumerate(columns)
    ]
    kept = _fitting(widths, style)
    columns, widths = columns[:kept], widths[:kept]
    room = max(_room(widths, style), _SHORTEST_KEY)
    heading = cut(escape(heading, style), room, style)
    labels = list(map(label, groups))
    if not style.is_whole:
        labels = [shorten(name, room, style) for name in labels]
    most = max(room, _WIDEST_KEY) if style.is_whole else room
    lines = [line for name in labels for line in name.split("\n")]
    first = min(max(map(width, [heading, *lines])), most)
    headings = [column.heading for column in columns]
    yield style.dim(_line(heading, first, headings, widths))
    for text, row in zip(labels, cells, strict=True):
        name, *more = text.split("\n")
        yield _line(name, first, row[:kept], widths)
        yield from (_INDENT + line for line in more)


def _room(widths: Sequence[int], style: Style) -> int:
    """Columns that are left for the first."""
    return style.width - len(_INDENT) - sum(len(_GAP) + size for size in widths)


def _fitting(widths: Sequence[int], style: Style) -> int:
    """Return the number of columns a terminal has room for; the last ones go first."""
    kept = len(widths)
    while kept > 1 and _room(widths[:kept], style) < _SHORTEST_KEY:
        kept -= 1
    return kept


def _line(name: str, first: int, row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(size) for cell, size in zip(row, widths, strict=True)]
    return _INDENT + _GAP.join([pad(name, first), *cells])


def key_table(
    groups: Sequence[Group], by: str, columns: Sequence[Column[Group]], style: Style
) -> Iterator[str]:
    """Rows by key. A wide key wraps: its end may be what distinguishes it."""

    def label(group: Group) -> str:
        return key_label(group, style)

    def shorten(key: str, room: int, _: Style) -> str:
        return "\n".join(lines_of(key, room))

    yield from table(groups, by, label, columns, style, shorten)


def count_table(
    result: Result, title: str, heading: str, style: Style, sort: Sort | None = None
) -> Iterator[str]:
    """Yield one table of the counts of all series, and an empty line.

    Args:
        result: Result without ``--by``.
        title: Title if there are several series.
        heading: Heading of the names.
        style: Style of the lines.
        sort: Order of the rows. If None, they stay in the order of the series.
    """
    seen = {group.series: group for group in result.groups}
    groups = [seen.get(name, Group(name, None, 0)) for name in result.series]
    title = title if len(groups) > 1 else result.series[0]
    yield result_header(result, title, groups, style)
    yield ""
    columns = [*count_columns(groups), rate_column(result)]
    rows = in_order(groups, sort) if sort else groups
    yield from table(rows, heading, lambda g: escape(g.series, style), columns, style)
    yield ""


def result_header(
    result: Result, title: str, groups: Sequence[Group], style: Style
) -> str:
    """Return a title with the number of events of some groups, and the time."""
    count = sum(group.count for group in groups)
    elapsed_ns = result.ended_ns - result.started_ns
    seen = f"{units.format_count(count)} in {units.span(elapsed_ns)}"
    rate = units.rate(count, elapsed_ns)
    if rate and count:
        seen += f"  {rate}"
    title = fitted(escape(title, style), max(style.width - len(seen) - 2, 16), style)
    gap = max(style.width - width(title) - len(seen), 2)
    return f"{style.bold(title)}{' ' * gap}{seen}"


def in_order(groups: Sequence[Group], sort: Sort) -> list[Group]:
    """Largest first, ``(other)`` last; equal ones by their keys."""

    def place(group: Group) -> tuple[bool, int, str, str]:
        size = group.total if sort == "total" else group.count
        return group.is_other, -size, group.series, _key_order(group)

    return sorted(groups, key=place)


def _key_order(group: Group) -> str:
    key = group.key
    if isinstance(key, int):
        return f"{key + (1 << 64):021d}"
    return str(key)


def count_columns(groups: Sequence[Group]) -> list[Column[Group]]:
    """Count and share of all."""
    everything = sum(group.count for group in groups)
    return [
        Column("count", lambda group: units.format_count(group.count)),
        Column("%", lambda group: units.share(group.count, everything)),
    ]


def rate_column(result: Result) -> Column[Group]:
    elapsed = result.ended_ns - result.started_ns
    return Column("rate", lambda group: units.rate(group.count, elapsed))


def distribution_columns(notation: Notation) -> list[Column[Group]]:
    """Count, percentiles and, where it says something, total."""
    columns = [
        Column("count", lambda group: units.format_count(group.count)),
        percentile_column("p50", 50, notation),
        percentile_column("p90", 90, notation),
        percentile_column("p99", 99, notation),
        percentile_column("max", 100, notation),
    ]
    if notation.has_total:
        heading = notation.heading("total")
        columns.append(Column(heading, lambda group: notation.cell(group.total)))
    return columns


def percentile_column(
    name: str,
    percentile: float,
    notation: Notation,
    highest: Callable[[Group], int | None] = lambda group: None,
) -> Column[Group]:
    """highest: value of a group if known exactly; a bucket's end may lie beyond it"""

    def cell(group: Group) -> str:
        distribution = group.distribution
        if distribution is None or not distribution.count:
            return "-"
        found = distribution.percentile(percentile)
        return notation.cell(min(found, highest(group) or found))

    return Column(notation.heading(name), cell)
