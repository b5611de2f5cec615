"""The rows of a picture: a distribution's many buckets merged into a few.

Rows end at numbers that people like. Rows are of one width where values are
few integers, within a factor of ten, or spread over all of their range;
elsewhere each decade is cut into the same steps, on both sides of zero. A
bucket belongs to the row its highest value is in, as percentiles are highest
values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.aggregate.histogram import Distribution, Number

MAX_ROWS = 24
_GOOD_ROWS = 20
_Scale = tuple[tuple[float, ...], int]
"""Where a decade is cut, and how many decades an uncut row takes."""

_SCALES: tuple[_Scale, ...] = (
    ((1, 1.5, 2, 3, 4, 5, 6, 8), 1),
    ((1, 1.5, 2, 3, 5, 7), 1),
    ((1, 2, 5), 1),
    ((1, 3), 1),
    *(((1,), stride) for stride in (1, 2, 3, 5, 10, 20, 30, 50, 100)),
)
_LINEAR_RATIO = 10
_SPREAD = 0.15
"""Share of the range that the middle half of spread values takes, at least."""

_HEAP = 0.25
"""Share of all values that a row of spread values has, at most."""

_LEAST_POWER = -300


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """Values from ``low`` up to, and without, ``high``. None: one value or bucket."""

    low: Number
    high: Number | None
    count: int


def rows(distribution: Distribution) -> list[HistogramRow]:
    """At most ``MAX_ROWS`` rows without gaps, lowest first; empty for no values."""
    buckets = list(distribution.buckets())
    if not buckets:
        return []
    if len(buckets) == 1:
        return [HistogramRow(distribution.percentile(50), None, distribution.count)]
    edges = _edges(distribution)
    counts = _fill(distribution, edges)
    return [_row(edges, place, number) for place, number in enumerate(counts)]


def without_runs(found: Sequence[HistogramRow]) -> list[HistogramRow]:
    """The rows, with one for each run of empty ones."""
    shown: list[HistogramRow] = []
    for row in found:
        if row.count or not shown or shown[-1].count:
            shown.append(row)
        else:
            high = row.low + 1 if row.high is None else row.high
            shown[-1] = HistogramRow(shown[-1].low, high, 0)
    return shown


def _fill(distribution: Distribution, edges: list[Number]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for _, high, number in distribution.buckets():
        counts[bisect_right(edges, high) - 1] += number
    return counts


def _row(edges: list[Number], place: int, number: int) -> HistogramRow:
    low, high = edges[place], edges[place + 1]
    is_single = isinstance(low, int) and isinstance(high, int) and high - low == 1
    return HistogramRow(low, None if is_single else high, number)


def _edges(distribution: Distribution) -> list[Number]:
    low, high = _ends(distribution)
    linear = _linear(distribution, low, high)
    if _are_close(distribution, low, high) or _are_spread(distribution, linear):
        return linear
    scales = (_logarithmic(distribution, low, high, scale) for scale in _SCALES)
    return next((edges for edges in scales if len(edges) <= MAX_ROWS + 1), linear)


def _ends(distribution: Distribution) -> tuple[Number, Number]:
    """Highest values of the first and the last bucket: rows go by these."""
    return distribution.percentile(1e-9), distribution.max


def _are_close(distribution: Distribution, low: Number, high: Number) -> bool:
    if distribution.kind != "float" and high - low < _GOOD_ROWS:
        return True
    near, far = sorted((abs(low), abs(high)))
    return low * high > 0 and far <= near * _LINEAR_RATIO


def _are_spread(distribution: Distribution, edges: list[Number]) -> bool:
    """Is there something in most rows, and no heap in one of them?"""
    low, high = _ends(distribution)
    middle = distribution.percentile(75) / 2 - distribution.percentile(25) / 2
    counts = _fill(distribution, edges)
    if 2 * sum(map(bool, counts)) < len(counts):
        return False
    if max(counts) > _HEAP * distribution.count:
        return False
    return middle >= _SPREAD * (high / 2 - low / 2)


def _linear(distribution: Distribution, low: Number, high: Number) -> list[Number]:
    """Edges a nice step apart; no step is narrower than a bucket."""
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
    """place × step, without the noise of binary fractions."""
    return float(f"{place * step:.12g}")


def _nice_step(least: Number, whole: bool) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that is at least ``least``."""
    if whole and least <= 1:
        return 1
    power = _magnitude(least)
    for step in (1, 2, 5, 10):
        size = _power(step, power)
        if size >= least:
            return size
    return _power(10, power)


def _magnitude(number: Number) -> int:
    """The power of ten at or just below ``number``, which is above 0."""
    power = math.floor(math.log10(number))
    return power - 1 if _power(1, power) > number else power


def _power(mantissa: float, power: int) -> float:
    return float(f"{mantissa}e{power}")


def _logarithmic(
    distribution: Distribution, low: Number, high: Number, scale: _Scale
) -> list[Number]:
    """Edges in decades, mirrored below zero, with zero between them."""
    whole = distribution.kind != "float"
    smallest: Number = 1 if whole else _smallest(distribution, scale)
    edges: set[Number] = set()
    if low < smallest:
        edges.update((0, smallest))
    if low < 0:
        edges.update(-edge for edge in _decades(smallest, -low, scale, whole))
    if high > 0:
        edges.update(_decades(max(low, smallest), high, scale, whole))
    ordered = sorted(edges)
    first = max(bisect_right(ordered, low) - 1, 0)
    last = bisect_right(ordered, high)
    return ordered[first : last + 1]


def _smallest(distribution: Distribution, scale: _Scale) -> float:
    """The highest power of ten that tells all values from zero."""
    sizes = (max(abs(low), abs(high)) for low, high, _ in distribution.buckets())
    power = _magnitude(min(size for size in sizes if size))
    return _power(1, max(power // scale[1] * scale[1], _LEAST_POWER))


def _decades(begin: Number, end: Number, scale: _Scale, whole: bool) -> list[Number]:
    """Edges from the last at or below ``begin`` to the first above ``end``."""
    steps, stride = scale
    power = _magnitude(begin) // stride * stride
    edges: list[Number] = []
    while not edges or edges[-1] <= end:
        sizes = (_power(step, power) for step in steps)
        edges.extend(
            int(size) if whole else size
            for size in sizes
            if not whole or size.is_integer()
        )
        power += stride
    return edges[bisect_right(edges, begin) - 1 : bisect_right(edges, end) + 1]
