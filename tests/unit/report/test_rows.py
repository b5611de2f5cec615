"""A few rows that show the shape of a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from rbtrace_py.aggregate.histogram import (
    Distribution,
    FloatHistogram,
    Histogram,
    SignedHistogram,
)
from rbtrace_py.report.terminal.histogram_rows import (
    MAX_ROWS,
    HistogramRow,
    Scale,
    rows,
    without_runs,
)

integers = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-100, 100)
floats = st.floats(allow_nan=False)


SCALES: tuple[Scale, ...] = ("auto", "linear", "log")


def check(distribution: Distribution) -> None:
    for scale in SCALES:
        check_rows(distribution, rows(distribution, scale))
    check_steps(rows(distribution, "linear"), is_log=False)
    check_steps(rows(distribution, "log"), is_log=True)


def check_steps(found: Sequence[HistogramRow], is_log: bool) -> None:
    """Equal steps, or one factor wherever zero is not an end."""
    ends = [(row.low, row.low + 1 if row.high is None else row.high) for row in found]
    if len(ends) < 2 or not all(math.isfinite(end) for pair in ends for end in pair):
        return  # an edge beyond the largest float
    if is_log:
        factors = [max(high / low, low / high) for low, high in ends if low * high]
        assert all(math.isclose(factor, factors[0]) for factor in factors)
        assert not factors or math.log2(round(factors[0])).is_integer()
    else:
        steps = [high - low for low, high in ends]
        far = max(abs(end) for pair in ends for end in pair)
        assert all(math.isclose(step, steps[0], abs_tol=1e-9 * far) for step in steps)


def check_rows(distribution: Distribution, found: Sequence[HistogramRow]) -> None:
    assert len(without_runs(found)) <= MAX_ROWS
    assert sum(row.count for row in found) == distribution.count
    if len(found) > 1:
        assert found[0].count
        assert found[-1].count
    for one, two in pairwise(found):
        assert one.low < two.low
        assert one.high in (None, two.low)


@given(st.lists(integers.map(abs)))
def test_integers(values: Sequence[int]) -> None:
    check(Histogram.from_values(values))


@given(st.lists(integers))
def test_signed(values: Sequence[int]) -> None:
    check(SignedHistogram.from_values(values))


@given(st.lists(floats))
@example([sign * 10.0**power for sign in (-1, 1) for power in range(-300, 301, 50)])
def test_floats(values: Sequence[float]) -> None:
    check(FloatHistogram.from_values(values))


def test_none() -> None:
    assert rows(Histogram({})) == []
    assert rows(FloatHistogram.from_values([math.nan])) == []


def test_one_value() -> None:
    assert rows(Histogram.from_values([7, 7])) == [HistogramRow(7, None, 2)]
    assert rows(FloatHistogram.from_values([0.0])) == [HistogramRow(0.0, None, 1)]


def test_few_integers_have_a_row_each() -> None:
    assert rows(Histogram.from_values([0, 1, 1, 3])) == [
        HistogramRow(0, None, 1),
        HistogramRow(1, None, 2),
        HistogramRow(2, None, 0),
        HistogramRow(3, None, 1),
    ]


def test_a_run_of_empty_rows_is_one() -> None:
    assert without_runs(rows(Histogram.from_values([0, 5, 7]))) == [
        HistogramRow(0, None, 1),
        HistogramRow(1, 5, 0),
        HistogramRow(5, None, 1),
        HistogramRow(6, None, 0),
        HistogramRow(7, None, 1),
    ]
    values = [1_000, 2_060_000, 2_100_000]
    found = without_runs(rows(Histogram.from_values(values)))
    assert [row.count for row in found] == [1, 0, 2]
    assert found[0].high == found[1].low
    assert found[1].high == found[2].low


def test_a_decade_is_cut_evenly() -> None:
    values = range(10_000, 20_000)
    found = rows(Histogram.from_values(values))
    assert [(row.low, row.high) for row in found] == [
        (low, low + 500) for low in range(10_000, 20_000, 500)
    ]
    assert {row.count for row in found[1:-1]} <= set(range(480, 521))


def test_wide_values_are_cut_into_doublings() -> None:
    values = [10**n for n in range(7)] * 10
    found = rows(Histogram.from_values(values))
    assert [row.low for row in found] == [2**n for n in range(20)]


def test_too_many_doublings_become_fourfold() -> None:
    values = [4**n for n in range(20)]
    found = rows(Histogram.from_values(values))
    assert [(row.low, row.count) for row in found] == [(4**n, 1) for n in range(20)]


def test_the_scale_can_be_chosen() -> None:
    values = Histogram.from_values([*range(1, 11), 100])
    steps = [(row.low, row.count) for row in rows(values, "linear") if row.count]
    assert steps == [(0, 4), (5, 5), (10, 1), (100, 1)]
    close = Histogram.from_values([5, 6, 7, 8, 9, 10])
    assert [row.low for row in rows(close)] == [5, 6, 7, 8, 9, 10]
    assert rows(close, "log") == [HistogramRow(5, 10, 5), HistogramRow(10, 20, 1)]


def test_zero_stands_between_signs() -> None:
    values = [-(10**6), -1, 0, 1, 10**6] * 2
    found = rows(SignedHistogram.from_values(values))
    assert HistogramRow(0, None, 2) in found
    assert HistogramRow(-1, None, 2) in found
    assert found[0] == HistogramRow(-(2**20), -(2**19), 2)
    assert found[-1] == HistogramRow(2**19, 2**20, 2)


def test_evenly_spread_values_get_equal_rows() -> None:
    found = rows(FloatHistogram.from_values([n / 1000 for n in range(1000)]))
    assert [(row.low, row.high) for row in found[:3]] == [
        (0.0, 0.05),
        (0.05, 0.1),
        (0.1, 0.15),
    ]
    assert len(found) == 20
