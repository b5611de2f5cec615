"""The rows of a histogram: a distribution's many buckets merged into a few.

All rows of a histogram are equal steps, or all are doublings (or the same higher power
of two, if doublings are too many). Edges are round numbers. A bucket belongs to the row
of its highest value, as percentiles are highest values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rbtrace_py.aggregate.histogram import Distribution, Number

Scale = Literal["auto", "linear", "log"]
"""Values of ``--scale``. ``auto`` is linear if that shows the shape, else log."""

MAX_ROWS = 24
_GOOD_ROWS = 20
_DOUBLINGS = (*range(1, 9), 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Candidate powers of two between rows; the first whose rows fit is used.

The last one always fits.
"""

_LINEAR_RATIO = 10
_SPREAD = 0.15
"""Minimum share of the range that the middle half of spread values covers."""

_HEAP = 0.25
"""Maximum share of all values in one row of spread values."""

_LEAST_POWER = -300


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """Values from ``low`` up to, and without, ``high``. None: one value or bucket."""

    low: Number
    high: Number | None
    count: int


def rows(distribution: Distribution, scale: Scale = "auto") -> list[HistogramRow]:
    """Return rows without gaps, lowest first; empty for no values.

    There are at most ``MAX_ROWS`` when ``without_runs`` has folded them.
    """
    buckets = list(distribution.buckets())
    if not buckets:
        return []
    if len(buckets) == 1:
        return [HistogramRow(distribution.percentile(50), None, distribution.count)]
    linear = _linear(distribution)
    if scale == "linear" or (scale == "auto" and _suits_linear(distribution, linear)):
        return _filled(distribution, linear)
    found = (_filled(distribution, _doublings(distribution, n)) for n in _DOUBLINGS)
    return next(each for each in found if len(without_runs(each)) <= MAX_ROWS)


def without_runs(found: Sequence[HistogramRow]) -> list[HistogramRow]:
    """Return the rows, with each run of empty rows merged into one."""
    shown: list[HistogramRow] = []
    for row in found:
        if row.count or not shown or shown[-1].count:
            shown.append(row)
        else:
            high = row.low + 1 if row.high is None else row.high
            shown[-1] = HistogramRow(shown[-1].low, high, 0)
    return shown


def split(
    found: Sequence[HistogramRow], distribution: Distribution, edge: Number
) -> list[HistogramRow]:
    """Return the rows, with the row that contains the edge split in two."""
    parts: list[HistogramRow] = []
    for row in found:
        if row.high is None or not row.low < edge < row.high:
            parts.append(row)
            continue
        below = sum(
            number for _, end, number in distribution.buckets() if row.low <= end < edge
        )
        parts.append(HistogramRow(row.low, edge, below))
        parts.append(HistogramRow(edge, row.high, row.count - below))
    return parts


def _fill(distribution: Distribution, edges: list[Number]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for _, high, number in distribution.buckets():
        counts[bisect_right(edges, high) - 1] += number
    return counts


def _filled(distribution: Distribution, edges: list[Number]) -> list[HistogramRow]:
    counts = _fill(distribution, edges)
    filled = [place for place, number in enumerate(counts) if number]
    return [_row(edges, at, counts[at]) for at in range(filled[0], filled[-1] + 1)]


def _row(edges: list[Number], place: int, number: int) -> HistogramRow:
    low, high = edges[place], edges[place + 1]
    is_single = isinstance(low, int) and isinstance(high, int) and high - low == 1
    return HistogramRow(low, None if is_single else high, number)


def _suits_linear(distribution: Distribution, edges: list[Number]) -> bool:
    return _are_close(distribution) or _are_spread(distribution, edges)


def _ends(distribution: Distribution) -> tuple[Number, Number]:
    """Return the highest values of the first and the last bucket.

    A bucket belongs to the row of its highest value.
    """
    return distribution.percentile(1e-9), distribution.max


def _are_close(distribution: Distribution) -> bool:
    low, high = _ends(distribution)
    if distribution.kind != "float" and high - low < _GOOD_ROWS:
        return True
    near, far = sorted((abs(low), abs(high)))
    return low * high > 0 and far <= near * _LINEAR_RATIO


def _are_spread(distribution: Distribution, edges: list[Number]) -> bool:
    """Return whether most rows have values and none has a large part of them."""
    low, high = _ends(distribution)
    middle = distribution.percentile(75) / 2 - distribution.percentile(25) / 2
    counts = _fill(distribution, edges)
    if 2 * sum(map(bool, counts)) < len(counts):
        return False
    if max(counts) > _HEAP * distribution.count:
        return False
    return middle >= _SPREAD * (high / 2 - low / 2)


def _linear(distribution: Distribution) -> list[Number]:
    """Return edges a nice step apart; no step is narrower than a bucket."""
    low, high = _ends(distribution)
    widest = max(end - start for start, end, _ in distribution.buckets())
    whole = distribution.kind != "float"
    step = _nice_step(max(high / _GOOD_ROWS - low / _GOOD_ROWS, widest), whole)
    first = math.floor(low / step)
    if whole:
        size = int(step)
        return list(range(int(low) // size * size, int(high) + size + 1, size))
    places = range(first, math.floor(high / step) + 2)
    return [_scaled(place, step) for place in places]


def _scaled(place: int, step: float) -> float:
    """Return place × step, without the noise of binary fractions."""
    return float(f"{place * step:.12g}")


def _nice_step(least: Number, whole: bool) -> float:
    """Return the smallest of 1, 2, 5 × 10ⁿ that is at least ``least``."""
    if whole and least <= 1:
        return 1
    power = _magnitude(least)
    for step in (1, 2, 5, 10):
        size = _power(step, power)
        if size >= least:
            return size
    return _power(10, power)


def _magnitude(number: Number) -> int:
    """Return the power of ten at or just below ``number``, which is above 0."""
    power = math.floor(math.log10(number))
    return power - 1 if _power(1, power) > number else power


def _power(mantissa: float, power: int) -> float:
    return float(f"{mantissa}e{power}")


def _doublings(distribution: Distribution, power: int) -> list[Number]:
    """Return edges 2^power apart, mirrored below zero, with zero between them."""
    low, high = _ends(distribution)
    first = _first_edge(distribution)
    edges: set[Number] = set()
    if low < first:
        edges.update((0, first))
    if low < 0:
        edges.update(-edge for edge in _multiples(first, -low, power))
    if high > 0:
        edges.update(_multiples(first, high, power))
    ordered = sorted(edges)
    start = max(bisect_right(ordered, low) - 1, 0)
    return ordered[start : bisect_right(ordered, high) + 1]


def _first_edge(distribution: Distribution) -> Number:
    """Return the number 1, 2, or 5 × 10ⁿ that separates all values from zero."""
    sizes = (max(abs(low), abs(high)) for low, high, _ in distribution.buckets())
    least = min(size for size in sizes if size)
    power = max(_magnitude(least), _LEAST_POWER)
    steps = [_power(mantissa, power) for mantissa in (1, 2, 5)]
    found = steps[max(bisect_right(steps, least) - 1, 0)]
    return found if distribution.kind == "float" else int(found)


def _multiples(first: Number, end: Number, power: int) -> list[Number]:
    """Return first × 2^(power × n), up to one above ``end``."""
    edges = [first]
    while edges[-1] <= end:
        edges.append(edges[-1] * 2**power)
    return edges
