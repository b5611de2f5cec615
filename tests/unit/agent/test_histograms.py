"""Histograms as the hook itself fills them, compared with HdrHistogram and brute
force."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from agent_memory import file_of, make_control
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from processes import ROOT, times
from rbtrace_py.agent.arming import tick_scale
from rbtrace_py.agent.shared import ClockPair, Condition, Counters, SharedMemory
from rbtrace_py.agent.tables import Counted, Tables
from rbtrace_py.aggregate.histogram import Histogram, bucket_index

HOOK = ROOT / "ext" / "agent" / "hook"
DRIVER = Path(__file__).with_name("tables_driver.c")
HIGHEST = 3_600_000_000_000
PERCENTILES = (0, 0.1, 1, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100)
DIGITS = (2, 3)
Duration = tuple[int, int]
"""A method's number, nanoseconds."""

durations = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.one_of(
            st.integers(0, HIGHEST * 2),
            st.integers(0, 3000),
            st.integers(7, 42).flatmap(
                lambda n: st.integers((1 << n) - 2, (1 << n) + 2)
            ),
        ),
    ),
    max_size=300,
)


class Filled(NamedTuple):
    rows: dict[int, Counted]
    counters: Counters


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "driver"
    words = ["gcc", "-std=gnu11", "-O2", "-Wno-strict-prototypes", "-I", str(HOOK)]
    command = [*words, str(DRIVER), str(HOOK / "tables.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def memory(digits: int, methods: int, blocks: int) -> bytearray:
    """The memory as the hook lays it out before the first event."""
    streams_at = 4096
    methods_at = streams_at + 64
    places_at = methods_at + methods * 128
    blocks_at = places_at + blocks * 8
    size = blocks_at + blocks * 64
    data = bytearray(size)
    struct.pack_into("<8sIIQIIII", data, 0, b"RBTRAGT1", 1, 4096, size, 7, 2, 513, 0)
    struct.pack_into("<QQQQQ", data, 40, 1 << 32, 0, 0, 0, 0)
    struct.pack_into("<QII", data, 80, methods_at, methods, 128)
    struct.pack_into("<QII", data, 96, places_at, digits, 8)
    struct.pack_into("<QII", data, 112, blocks_at, blocks, 64)
    struct.pack_into("<QII", data, 128, streams_at, 1, 64)
    struct.pack_into("<4I", data, 192, 1, methods, 1, 1)
    return data


def fill(
    driver: Path,
    data: bytearray,
    given_: Iterable[Duration],
    wrap: Sequence[str] = (),
) -> Filled:
    """Let the hook's code count these durations. Return what the tracer reads."""
    fd = file_of(data)
    path = f"/proc/self/fd/{fd}"
    pairs = b"".join(struct.pack("<QQ", *pair) for pair in given_)
    subprocess.run([driver, path, *wrap], input=pairs, check=True, pass_fds=(fd,))
    with SharedMemory(fd, file_of(make_control(1))) as shared:
        scale = tick_scale(shared.header, ClockPair(1, 1))
        rows = Tables(shared, scale).read()
        return Filled({row.index: row for row in rows}, shared.counters())


def by_method(given_: Iterable[Duration]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for method, ns in given_:
        found[method].append(min(ns, HIGHEST))
    return found


@pytest.mark.parametrize("digits", DIGITS)
@settings(max_examples=times(500), deadline=None)
@given(given_=durations)
def test_histograms_are_those_of_hdrhistogram(
    driver: Path, digits: int, given_: list[Duration]
) -> None:
    rows = fill(driver, memory(digits, 8, 400), given_).rows
    expected = by_method(given_)
    assert rows.keys() == expected.keys()
    for method, values in expected.items():
        reference = HdrHistogram(1, HIGHEST, digits)
        for value in values:
            reference.record_value(value)
        ours = Histogram(rows[method].buckets, digits)
        assert ours == Histogram.from_values(values, digits)
        assert (ours.count, ours.min, ours.max) == (
            len(values),
            reference.get_min_value(),
            reference.get_max_value(),
        )
        assert ours.mean == reference.get_mean_value()
        for percentile in PERCENTILES:
            theirs = reference.get_value_at_percentile(percentile)
            assert ours.percentile(percentile) == theirs, percentile


@pytest.mark.parametrize("digits", DIGITS)
@settings(max_examples=times(500), deadline=None)
@given(given_=durations.filter(bool))
def test_percentiles_have_the_digits_that_are_said(
    driver: Path, digits: int, given_: list[Duration]
) -> None:
    """They are compared with the sorted list of all values."""
    rows = fill(driver, memory(digits, 8, 400), given_).rows
    for method, values in by_method(given_).items():
        values.sort()
        ours = Histogram(rows[method].buckets, digits)
        for percentile in PERCENTILES[1:]:
            place = max(int(percentile * len(values) / 100 + 0.5), 1)
            exact = values[place - 1]
            assert 0 <= ours.percentile(percentile) - exact <= exact / 10**digits


@pytest.mark.parametrize("bits", [8, 16, 32, 48])
@pytest.mark.parametrize("digits", DIGITS)
def test_a_counter_that_wraps(driver: Path, digits: int, bits: int) -> None:
    """It starts at 2 ** bits - 2. Its neighbors are not touched."""
    durations_ = [(1, 5_000), (1, 5_100), (2, 5_000)]
    data = memory(digits, 8, 16)
    found = fill(driver, data, durations_, [str(bits)])
    bucket, beside = (bucket_index(ns, digits) for ns in (5_000, 5_100))
    assert found.rows[1].buckets == {bucket: (1 << bits) + 1, beside: 1}
    assert found.rows[2].buckets == {bucket: 1}
    assert found.counters.no_block == 0


def test_many_of_one_duration(driver: Path) -> None:
    """Some counters continue in a second block, and some do not."""
    given_ = [(1, 100)] * 70_000 + [(1, 101)] * 255 + [(1, 102)] * 256
    found = fill(driver, memory(2, 8, 16), given_)
    assert found.rows[1].buckets == Counter(ns for _, ns in given_)
    assert found.counters.blocks == 4


def test_no_room_for_a_carry(driver: Path) -> None:
    """The counter stays at its maximum, and the rest is reported as missing."""
    given_ = [*[(1, 100)] * 300, (1, 101)]
    found = fill(driver, memory(2, 8, 2), given_)
    assert found.rows[1].buckets == {100: 255, 101: 1}
    assert found.counters.no_block == 300 - 255
    assert found.counters.conditions == Condition.BLOCKS_FULL


@pytest.mark.parametrize("digits", DIGITS)
def test_ten_thousand_methods(driver: Path, digits: int) -> None:
    """The memory has many times more slots than the hook's first table."""
    number = 10_000
    given_ = [
        (method, (method * 7 + 1) << octave)
        for octave in range(8)
        for method in range(1, number + 1)
    ]
    found = fill(driver, memory(digits, number + 1, 90_000), given_)
    assert found.counters.no_block == 0
    expected = by_method(given_)
    assert found.rows.keys() == expected.keys()
    for method, values in expected.items():
        counts = Counter(bucket_index(value, digits) for value in values)
        assert found.rows[method].buckets == counts
