"""Tables of ``--by`` and of counts."""

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
"""Maximum columns reserved for uncut names; a longer name makes its line longer."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A heading, and the text for each row."""

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
    """Yield a heading and one line per group; the first column is cut to fit.

    If names are not cut, the first column is as wide as the longest name, within a
    limit.

    Args:
        groups: Rows of the table.
        heading: Heading of the first column.
        label: Function that returns the name of a row.
        columns: Further columns.
        style: Style of the lines.
        shorten: Function that fits a name into a number of columns. Further lines of
            its result become lines of the table.
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
    """Return the columns that are left for the first column."""
    return style.width - len(_INDENT) - sum(len(_GAP) + size for size in widths)


def _fitting(widths: Sequence[int], style: Style) -> int:
    """Return the number of columns that fit; the last ones are dropped first."""
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
    """Yield rows by key. A wide key wraps, because its end may distinguish it."""

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
    """Return groups, the largest first and ``(other)`` last; ties are sorted by key."""

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
    """Return columns of the count and its share."""
    everything = sum(group.count for group in groups)
    return [
        Column("count", lambda group: units.format_count(group.count)),
        Column("%", lambda group: units.share(group.count, everything)),
    ]


def rate_column(result: Result) -> Column[Group]:
    elapsed = result.ended_ns - result.started_ns
    return Column("rate", lambda group: units.rate(group.count, elapsed))


def distribution_columns(notation: Notation) -> list[Column[Group]]:
    """Return columns of count, percentiles and, if it is meaningful, total."""
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
    """Return a column of a percentile.

    Args:
        name: Heading of the column.
        percentile: Percentile, 0 to 100.
        notation: Number formats.
        highest: Function that returns the largest value of a group if it is known
            exactly. A bucket's end may be beyond it.
    """

    def cell(group: Group) -> str:
        distribution = group.distribution
        if distribution is None or not distribution.count:
            return "-"
        found = distribution.percentile(percentile)
        return notation.cell(min(found, highest(group) or found))

    return Column(notation.heading(name), cell)
