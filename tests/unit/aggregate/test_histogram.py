"""The kernel's bucket formula against HdrHistogram, and distributions."""

from __future__ import annotations

import math
import random
import tracemalloc

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtrace_py.aggregate.histogram import (
    DENSE_BUCKETS,
    DENSE_MAX_VALUE,
    FloatHistogram,
    Histogram,
    SignedHistogram,
    bucket_bounds,
    bucket_index,
    bucket_middle,
    float_key,
    integer_key,
)

REFERENCE = HdrHistogram(1, 3_600_000_000_000, 3)
PERCENTILES = (0, 0.1, 1, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100)

TINY = 2.0**42 * 5e-324

in_range = st.one_of(
    st.integers(0, DENSE_MAX_VALUE),
    st.integers(0, 5000),
    st.integers(11, 41).flatmap(lambda n: st.integers((1 << n) - 2, (1 << n) + 2)),
)
int64 = st.integers(-(2**63) + 1, 2**63 - 1)


def edges() -> list[int]:
    powers = [1 << n for n in range(42)]
    near = [p + d for p in powers for d in (-1, 0, 1)]
    return [*near, DENSE_MAX_VALUE, 3_600_000_000_000]


def test_index_is_that_of_hdrhistogram() -> None:
    chance = random.Random(1)
    some = [chance.randrange(1 << chance.randrange(1, 42)) for _ in range(20_000)]
    for value in edges() + some:
        assert bucket_index(value) == REFERENCE._counts_index_for(value), value


def test_range_is_that_of_hdrhistogram() -> None:
    assert REFERENCE.counts_len == DENSE_BUCKETS
    assert bucket_index(DENSE_MAX_VALUE) == DENSE_BUCKETS - 1
    assert bucket_index(DENSE_MAX_VALUE + 1) == DENSE_BUCKETS


@given(in_range)
def test_bounds_are_those_of_hdrhistogram(value: int) -> None:
    lowest, highest = bucket_bounds(bucket_index(value))
    assert lowest == REFERENCE.get_lowest_equivalent_value(value)
    assert highest == REFERENCE.get_highest_equivalent_value(value)
    middle = REFERENCE._hdr_median_equiv_value(value)
    assert bucket_middle(bucket_index(value)) == middle


@given(st.integers(0, 2**63 - 1))
def test_every_63_bit_value_is_inside_its_bucket(value: int) -> None:
    lowest, highest = bucket_bounds(bucket_index(value))
    assert lowest <= value <= highest
    assert bucket_index(lowest) == bucket_index(highest) == bucket_index(value)
    assert (highest - lowest) * 1000 <= lowest


def test_buckets_follow_each_other_without_a_gap() -> None:
    end = -1
    for index in range(DENSE_BUCKETS + 20 * 1024):
        lowest, highest = bucket_bounds(index)
        assert lowest == end + 1
        end = highest


@pytest.mark.parametrize("digits", [2, 3])
@settings(max_examples=15, deadline=None)
@given(values=st.lists(in_range, max_size=200))
def test_reports_what_hdrhistogram_reports(digits: int, values: list[int]) -> None:
    reference = HdrHistogram(1, 3_600_000_000_000, digits)
    for value in values:
        reference.record_value(value)
    ours = Histogram.from_values(values, digits)
    assert Histogram.from_values(values).with_digits(digits) == ours
    assert ours.count == reference.get_total_count()
    assert ours.min == reference.get_min_value()
    assert ours.max == reference.get_max_value()
    assert ours.mean == reference.get_mean_value()
    for percentile in PERCENTILES:
        expected = reference.get_value_at_percentile(percentile)
        assert ours.percentile(percentile) == expected, percentile


@given(st.lists(in_range, max_size=50), st.lists(in_range, max_size=50))
def test_combined_histograms_have_the_fewer_digits(
    one: list[int], other: list[int]
) -> None:
    both = Histogram.from_values(one + other, 2)
    fine, coarse = Histogram.from_values(one), Histogram.from_values(other, 2)
    assert fine.merge(coarse) == coarse.merge(fine) == both
    assert both.minus(coarse) == Histogram.from_values(one, 2)
    assert fine == Histogram.from_values(one)


def test_buckets_ascend() -> None:
    ours = Histogram.from_values([5000, 3, 5001, 3])
    assert list(ours.buckets()) == [(3, 3, 2), (5000, 5003, 2)]


def test_minus_and_merge() -> None:
    older = Histogram.from_values([1, 2, 2])
    newer = Histogram.from_values([1, 2, 2, 2, 9])
    assert newer.minus(older) == Histogram.from_values([2, 9])
    assert older.merge(newer.minus(older)) == newer
    assert newer.minus(newer).count == 0


def test_empty() -> None:
    for kind in (Histogram, SignedHistogram, FloatHistogram):
        empty = kind({})
        assert (empty.count, empty.min, empty.max, empty.mean) == (0, 0, 0, 0.0)
        assert empty.percentile(50) == 0
        assert list(empty.buckets()) == []


@given(st.lists(int64, min_size=1))
def test_signed_orders_by_value(values: list[int]) -> None:
    ours = SignedHistogram.from_values(values)
    assert ours.count == len(values)
    assert ours.min <= min(values)
    assert ours.max >= max(values)
    ends = [end for lowest, highest, _ in ours.buckets() for end in (lowest, highest)]
    assert ends == sorted(ends)
    middle = sorted(values)[(len(values) + 1) // 2 - 1]
    assert integer_key(ours.percentile(50)) == integer_key(middle)


def test_signed_keys() -> None:
    assert integer_key(-1) == 0x80000001
    assert integer_key(5) == 5
    ours = SignedHistogram({0x80000001: 2, 1: 1, 0: 4})
    assert list(ours.buckets()) == [(-1, -1, 2), (0, 0, 4), (1, 1, 1)]
    assert ours.mean == -1 / 7
    far = SignedHistogram.from_values([-(2**63) + 1])
    assert far.min == -(2**63) + 1


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_order_by_value(values: list[float]) -> None:
    ours = FloatHistogram.from_values(values)
    assert ours.count == len(values)
    assert ours.min <= min(v if abs(v) >= TINY else 0.0 for v in values)
    assert ours.max >= max(v if abs(v) >= TINY else 0.0 for v in values)
    ends = [end for lowest, highest, _ in ours.buckets() for end in (lowest, highest)]
    assert ends == sorted(ends)
    assert math.isfinite(ours.mean)


def test_float_buckets_are_a_thousandth_wide() -> None:
    for value in (0.5, 1.0, -3.7, 1e300, 1e-300):
        ((lowest, highest, count),) = FloatHistogram.from_values([value]).buckets()
        assert count == 1
        assert lowest <= value <= highest
        assert highest - lowest < abs(value) / 1000


def test_infinities_and_nan_are_counted_apart() -> None:
    values = [math.inf, -math.inf, -math.inf, math.nan, 0.0, -0.0, 1.5]
    ours = FloatHistogram.from_values(values)
    assert ours.apart == {"-inf": 2, "inf": 1, "nan": 1}
    assert ours.count == 3
    assert [count for *_, count in ours.buckets()] == [2, 1]
    assert ours.min == 0.0
    assert ours.minus(FloatHistogram.from_values([math.nan])).apart == {
        "-inf": 2,
        "inf": 1,
    }
    assert Histogram({}).apart == {}


def test_float_key() -> None:
    assert float_key(1.0) == 0x3FF << 10
    assert float_key(-2.0) == (1 << 21) | (0x400 << 10)


@pytest.mark.parametrize("kind", [Histogram, SignedHistogram])
def test_kinds_are_never_equal(kind: type[Histogram]) -> None:
    assert kind({1: 1}) != FloatHistogram({1: 1})
    assert repr(kind({1: 2})) == f"{kind.__name__}({{1: 2}})"


def test_a_bucket_takes_little_memory() -> None:
    """``latency --by`` keeps hundreds of thousands of them for days."""
    number = 50_000
    counts = {key: 1_000 + key for key in range(number)}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = Histogram(counts)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.count == sum(counts.values())
    assert (after - before) / number < 16
