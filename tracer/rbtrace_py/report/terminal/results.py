"""Final reports of latency, values, and count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.histogram import (
    Notation,
    numbers,
    picture,
    times,
)
from rbtrace_py.report.terminal.histogram_rows import Scale
from rbtrace_py.report.terminal.notes import note_lines
from rbtrace_py.report.terminal.slow_spans import slow_lines
from rbtrace_py.report.terminal.tables import (
    Sort,
    count_columns,
    count_table,
    distribution_columns,
    in_order,
    key_table,
    result_header,
)
from rbtrace_py.report.units import Unit


def latency_report(
    result: Result,
    style: Style,
    unit: Unit = "auto",
    sort: Sort = "total",
    scale: Scale = "auto",
) -> Iterator[str]:
    """Yield one histogram per series, or with ``--by`` tables; then notes.

    Args:
        result: Result of ``latency``.
        style: Style of the lines.
        unit: Unit of times.
        sort: Order of the rows of a table.
        scale: Scale of histograms.
    """
    notation = times(style, unit, scale)
    slow = result.slow
    if slow is not None:
        notation = replace(notation, marked_from=slow.least_ns)
    for series in result.series:
        yield from _series(result, series, notation, sort, style)
    if slow is not None:
        yield from slow_lines(result, slow, notation, style)
    yield from note_lines(result, style)


def values_report(
    result: Result, style: Style, sort: Sort = "count", scale: Scale = "auto"
) -> Iterator[str]:
    """Yield the histograms of numbers, or the top values of strings and bools.

    Args:
        result: Result of ``values``.
        style: Style of the lines.
        sort: Order of the rows of a table.
        scale: Scale of histograms.
    """
    notation = times(style, scale=scale) if result.unit == "ns" else numbers(scale)
    for series in result.series:
        yield from _series(result, series, notation, sort, style)
    yield from note_lines(result, style)


def count_report(result: Result, style: Style) -> Iterator[str]:
    """Yield one table of all series, or with ``--by`` one per series."""
    if result.by is not None:
        for series in result.series:
            yield from _series(result, series, numbers(), "count", style)
    else:
        yield from count_table(result, "all probes", "probe", style, "count")
    yield from note_lines(result, style)


def _series(
    result: Result, series: str, notation: Notation, sort: Sort, style: Style
) -> Iterator[str]:
    groups = [group for group in result.groups if group.series == series]
    title = f"{series} {result.operand}" if result.operand else series
    yield result_header(result, title, groups, style)
    yield ""
    if not any(group.count for group in groups):
        return
    if result.by is not None:
        yield from _by(groups, result.by, notation, sort, style)
        yield ""
        return
    for group in groups:
        if group.distribution is not None and group.distribution.count:
            yield from picture(group.distribution, group.total, notation, style)
            yield ""


def _by(
    groups: Sequence[Group], by: str, notation: Notation, sort: Sort, style: Style
) -> Iterator[str]:
    has_values = any(group.distribution is not None for group in groups)
    columns = distribution_columns(notation) if has_values else count_columns(groups)
    yield from key_table(in_order(groups, sort), by, columns, style)
