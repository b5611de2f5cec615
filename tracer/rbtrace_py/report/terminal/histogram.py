"""A readable distribution: percentiles, and bars in few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rbtrace_py.aggregate.histogram import Distribution
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.histogram_rows import (
    HistogramRow,
    Scale,
    rows,
    split,
    without_runs,
)
from rbtrace_py.report.text import pad, pad_left, width
from rbtrace_py.report.units import Format, Number

_EIGHTHS = " ▏▎▍▌▋▊▉"
_INDENT = "  "
_LONGEST_BAR = 40
_SHORTEST_BAR = 8
_SHARE_WIDTH = 7


@dataclass(frozen=True, slots=True)
class Notation:
    """Number formats of a report.

    Attributes:
        value: Format of measured values.
        edges: Format of the edges between rows of a histogram.
        scale: Steps between rows of a histogram.
        cell: Format of measured values in a table whose headings contain the ``unit``.
        unit: Unit in headings; empty if the cells contain it.
        has_total: True if a sum is meaningful.
        marked_from: Value from which on rows are marked.
    """

    value: Format
    edges: Callable[[Sequence[Number]], list[str]]
    cell: Format
    unit: str = ""
    has_total: bool = False
    scale: Scale = "auto"
    marked_from: Number | None = None

    def is_unmarked(self, low: Number) -> bool:
        """Return whether a row that begins at ``low`` is unmarked."""
        return self.marked_from is None or low < self.marked_from

    def heading(self, name: str) -> str:
        """Return the heading of a column of ``cell``s."""
        return f"{name} {self.unit}".rstrip()


def times(style: Style, unit: units.Unit = "auto", scale: Scale = "auto") -> Notation:
    """Return the notation of nanoseconds."""

    def value(number: Number) -> str:
        return units.duration(number, style, unit)

    def edges(numbers: Sequence[Number]) -> list[str]:
        return units.edges(numbers, style, unit)

    def cell(number: Number) -> str:
        return units.scaled(number, unit)

    if unit == "auto":
        return Notation(value, edges, value, "", True, scale)
    return Notation(value, edges, cell, units.unit_name(unit, style), True, scale)


def numbers(scale: Scale = "auto") -> Notation:
    """Return the notation of numbers without a unit."""
    return Notation(units.value, units.plain_edges, units.value, scale=scale)


def picture(
    distribution: Distribution,
    total: int,
    notation: Notation,
    style: Style,
    least: int = 0,
    highest: int = 0,
) -> Iterator[str]:
    """Yield percentiles, an empty line, and rows; nothing if there are no values.

    Args:
        distribution: Measured values.
        total: Sum of the values.
        notation: Number formats.
        style: Style of the lines.
        least: Average number of values per row below which the rows are left out.
        highest: Largest value, if it is known more exactly than by its bucket.
    """
    if not distribution.count:
        return
    yield from _facts(distribution, total, notation, style, highest)
    found = without_runs(rows(distribution, notation.scale))
    if notation.marked_from is not None:
        found = split(found, distribution, notation.marked_from)
    if distribution.count >= least * len(found):
        yield ""
        yield from _bars(found, notation, style)


def _facts(
    distribution: Distribution,
    total: int,
    notation: Notation,
    style: Style,
    highest: int,
) -> Iterator[str]:
    most = highest or distribution.max
    quantiles = [(f"p{p:g}", distribution.percentile(p)) for p in (50, 90, 99, 99.9)]
    facts = [
        ("min", min(distribution.min, most)),
        *((name, min(value, most)) for name, value in quantiles),
        ("max", most),
        ("mean", distribution.mean),
    ]
    if notation.has_total:
        facts.append(("total", total))
    yield from _grid([(name, notation.value(fact)) for name, fact in facts], style)


def _grid(cells: Sequence[tuple[str, str]], style: Style) -> Iterator[str]:
    """Yield names and values in as many columns as fit, up to four."""
    names = max(len(name) for name, _ in cells)
    values = max(len(value) for _, value in cells)
    size = len(_INDENT) + names + 2 + values
    across = max(min(4, (style.width - 2) // (size + 1)), 1)
    gap = " " * min((style.width - across * size) // across, 4)
    for start in range(0, len(cells), across):
        line = gap.join(
            f"{_INDENT}{style.dim(name.ljust(names))}  {value.rjust(values)}"
            for name, value in cells[start : start + across]
        )
        yield line


def _bars(
    found: Sequence[HistogramRow], notation: Notation, style: Style
) -> Iterator[str]:
    labels = row_labels(found, notation, style)
    counts = [units.format_count(row.count) for row in found]
    label_width = max(map(width, labels))
    count_width = max(len("count"), *map(len, counts))
    fixed = len(_INDENT) + label_width + 2 + 2 + count_width
    headings = [_share("%"), _share("sum %")]
    while headings and style.width - fixed - _width_of(headings) < _SHORTEST_BAR:
        headings.pop()
    room = style.width - fixed - _width_of(headings)
    longest = max(min(room, _LONGEST_BAR), _SHORTEST_BAR)
    heading = f"{'count'.rjust(count_width)}{''.join(headings)}"
    yield f"{_INDENT}{' ' * (label_width + 2 + longest + 2)}{style.dim(heading)}"
    most = max(row.count for row in found)
    bars = [pad(bar(row.count, most, longest, style), longest) for row in found]
    for row, label, drawn, count, shares in zip(
        found, labels, bars, counts, _shares(found), strict=True
    ):
        lead = _INDENT if notation.is_unmarked(row.low) else f"{mark(style)} "
        start = f"{lead}{style.dim(pad_left(label, label_width))}"
        shown = shares[: _width_of(headings)]
        yield f"{start}  {style.cyan(drawn)}  {count.rjust(count_width)}{shown}"


def mark(style: Style) -> str:
    """Return the marker of a slow row, which is one column wide."""
    return style.red(style.pick("▸", ">"))


def _width_of(columns: Sequence[str]) -> int:
    return sum(map(len, columns))


def _shares(found: Sequence[HistogramRow]) -> Iterator[str]:
    """Yield each row's share and cumulative share."""
    counts = [row.count for row in found]
    everything = sum(counts)
    for count, so_far in zip(counts, accumulate(counts), strict=True):
        own, running = units.share(count, everything), units.share(so_far, everything)
        yield _share(own) + _share(running)


def _share(text: str) -> str:
    return text.rjust(_SHARE_WIDTH)


def row_labels(
    found: Sequence[HistogramRow], notation: Notation, style: Style
) -> list[str]:
    if len(found) == 1 and found[0].high is None:
        return [notation.value(found[0].low)]
    dash = style.pick("–", "-")
    ends = [row.low for row in found]
    ends += [row.high for row in found if row.high is not None]
    shown = dict(zip(ends, notation.edges(ends), strict=True))
    lows = [shown[row.low] for row in found]
    highs = ["" if row.high is None else shown[row.high] for row in found]
    left, right = max(map(width, lows)), max(map(width, highs))
    if not right:
        return lows
    return [
        f"{pad_left(low, left)} {dash if high else ' '} {pad_left(high, right)}"
        for low, high in zip(lows, highs, strict=True)
    ]


def bar(part: int, most: int, columns: int, style: Style) -> str:
    """Return a bar of at most ``columns`` columns; a part above 0 is always visible."""
    if not part:
        return ""
    if style.ascii:
        return "#" * round(part * columns / most) or "."
    eighths = max(round(part * columns * 8 / most), 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
