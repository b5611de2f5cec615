"""Tables of methods, as profilers show them, and counts of methods and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.histogram import Notation, picture, times
from rbtrace_py.report.terminal.histogram_rows import Scale
from rbtrace_py.report.terminal.notes import note_lines
from rbtrace_py.report.terminal.tables import (
    Column,
    count_columns,
    count_table,
    percentile_column,
    rate_column,
    result_header,
    table,
)
from rbtrace_py.report.text import cut_left, ellipsis, key_label, width
from rbtrace_py.report.units import Unit

SORTS = ("total", "self", "calls", "p50", "p99", "max")
TOP = 30
_PICTURES = 3
"""Maximum number of rows that also get a histogram each, above the table."""


def methods_report(
    result: Result,
    style: Style,
    unit: Unit = "auto",
    sort: str = "total",
    top: int = TOP,
    pictures: bool = False,
    scale: Scale = "auto",
) -> Iterator[str]:
    """Yield one table per series, or a histogram if it has no keys; then notes.

    Args:
        result: Result of methods.
        style: Style of the lines.
        unit: Unit of times.
        sort: Column to sort by.
        top: Maximum number of rows of a table.
        pictures: True to show histograms of single rows if there are few.
        scale: Scale of histograms.
    """
    notation = times(style, unit, scale)
    for series in result.series:
        groups = _of(result, series)
        yield result_header(result, series, groups, style)
        yield ""
        yield from _pictures(groups, notation, style, pictures)
        has_left = bool(result.counters.get("abandoned"))
        keyed = [group for group in groups if _is_row(group, result.by, has_left)]
        if keyed:
            rows = sorted(keyed, key=lambda group: (*_order(group, sort), _name(group)))
            columns = _time_columns(notation, keyed)
            if has_left:
                columns.insert(1, _NO_RETURN)
            yield from _rows(rows, columns, result.by or "", style, top)
    yield from note_lines(result, style)


def counts_report(result: Result, style: Style, top: int = TOP) -> Iterator[str]:
    """Yield counts and rates: one table of all series, or with ``--by`` one each.

    Args:
        result: Result of ``count``.
        style: Style of the lines.
        top: Maximum number of rows of a table.
    """
    if result.by is None:
        yield from count_table(result, "all", "", style)
    else:
        for series in result.series:
            yield from _key_counts(result, series, style, top)
    yield from note_lines(result, style)


def _key_counts(result: Result, series: str, style: Style, top: int) -> Iterator[str]:
    groups = _of(result, series)
    yield result_header(result, series, groups, style)
    yield ""
    if any(group.count for group in groups):
        rows = sorted(groups, key=lambda group: (-group.count, _name(group)))
        columns = [*count_columns(rows), rate_column(result)]
        yield from _rows(rows, columns, result.by or "", style, top)


def _rows(
    rows: Sequence[Group],
    columns: Sequence[Column[Group]],
    by: str,
    style: Style,
    top: int,
) -> Iterator[str]:
    """Yield the first rows, the number of further rows, and an empty line."""

    def label(group: Group) -> str:
        return key_label(group, style)

    yield from table(rows[:top], by, label, columns, style, _shorter)
    if len(rows) > top:
        more = units.format_count(len(rows) - top)
        yield style.dim(f"  and {more} more (--top shows more of them)")
    yield ""


def _shorter(name: str, columns: int, style: Style) -> str:
    """Return ``…::Server#run``: outer modules are dropped first, if that is enough.

    The end of a method's name identifies it better than the beginning of its module's.
    """
    if width(name) <= columns:
        return name
    mark = ellipsis(style)
    place = name.find("::")
    while place >= 0:
        if len(mark) + width(name[place:]) <= columns:
            return mark + name[place:]
        place = name.find("::", place + 2)
    return cut_left(name, columns, style)


def _of(result: Result, series: str) -> list[Group]:
    return [group for group in result.groups if group.series == series]


def _pictures(
    groups: Sequence[Group], notation: Notation, style: Style, pictures: bool
) -> Iterator[str]:
    full = [g for g in groups if g.distribution is not None and g.distribution.count]
    few = pictures and len(full) <= _PICTURES
    for group in full:
        if group.key is not None and not few:
            continue
        assert group.distribution is not None
        if len(full) > 1:
            yield style.bold(key_label(group, style))
        summed = group.summed if isinstance(group, MethodGroup) else group.total
        # A histogram of two calls would be rows of zeros.
        least = 0 if group.key is None else 1
        highest = _highest(group)
        yield from picture(group.distribution, summed, notation, style, least, highest)
        yield ""


def _is_row(group: Group, by: str | None, has_left: bool) -> bool:
    """Return whether a group is a row; open calls alone are only in the notes."""
    return by is not None and bool(group.count or (has_left and _entries(group)))


def _time_columns(notation: Notation, rows: Sequence[Group]) -> list[Column[Group]]:
    def timed(time: Callable[[Group], int | None]) -> Callable[[Group], str]:
        return lambda group: notation.cell(time(group) or 0) if group.count else "-"

    heading = notation.heading
    sums = {"total": _total, "self": _own}
    return [
        Column("calls", lambda group: units.format_count(group.count)),
        *(
            Column(heading(name), timed(time))
            for name, time in sums.items()
            if all(time(group) is not None for group in rows)
        ),
        percentile_column("p50", 50, notation, _highest),
        percentile_column("p99", 99, notation, _highest),
        Column(heading("max"), timed(_highest)),
    ]


def _entries(group: Group) -> int:
    return group.entries if isinstance(group, MethodGroup) else group.count


def _unreturned(group: Group) -> int:
    """Return the number of calls that were left without a return, or are still open."""
    return max(_entries(group) - group.count, 0)


_NO_RETURN: Column[Group] = Column(
    "no return", lambda group: units.format_count(_unreturned(group))
)


def _total(group: Group) -> int | None:
    has_total = not isinstance(group, MethodGroup) or group.has_total
    return group.total if has_total else None


def _own(group: Group) -> int | None:
    return group.own if isinstance(group, MethodGroup) else 0


def _highest(group: Group) -> int:
    return group.highest if isinstance(group, MethodGroup) else 0


def _order(group: Group, sort: str) -> tuple[float, int]:
    """Return a key that sorts the largest first, by ``sort`` and then by the total.

    A group without a total is sorted by self time, or else by calls.
    """
    values = group.distribution
    sums = (_total(group), _own(group), group.count)
    total = next(each for each in sums if each is not None)
    size: float = total
    if sort == "self":
        size = _own(group) or 0
    elif sort == "calls":
        size = group.count
    elif sort == "max":
        size = _highest(group)
    elif sort != "total" and values is not None:
        size = values.percentile(float(sort.removeprefix("p")))
    return -size, -total


def _name(group: Group) -> str:
    return str(group.key)
