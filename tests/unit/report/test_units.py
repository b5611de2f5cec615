"""Numbers in readable units."""

from __future__ import annotations

import pytest

from rbtrace_py.report import units
from rbtrace_py.report.style import ASCII, PLAIN


@pytest.mark.parametrize(
    ("nanoseconds", "auto", "us", "ms", "s"),
    [
        (0, "0 ns", "0.0 µs", "0.000 ms", "0.000000 s"),
        (7, "7 ns", "0.0 µs", "0.000 ms", "0.000000 s"),
        (999, "999 ns", "1.0 µs", "0.001 ms", "0.000001 s"),
        (1000, "1.00 µs", "1.0 µs", "0.001 ms", "0.000001 s"),
        (12_345, "12.3 µs", "12.3 µs", "0.012 ms", "0.000012 s"),
        (999_400, "999 µs", "999.4 µs", "0.999 ms", "0.000999 s"),
        (999_600, "1.00 ms", "999.6 µs", "1.000 ms", "0.001000 s"),
        (1_234_567, "1.23 ms", "1,234.6 µs", "1.235 ms", "0.001235 s"),
        (10**9, "1.00 s", "1,000,000.0 µs", "1,000.000 ms", "1.000000 s"),
        (
            3_600 * 10**9,
            "3,600 s",
            "3,600,000,000.0 µs",
            "3,600,000.000 ms",
            "3,600.000000 s",
        ),
    ],
)
def test_duration(nanoseconds: int, auto: str, us: str, ms: str, s: str) -> None:
    assert units.duration(nanoseconds, PLAIN) == auto
    assert units.duration(nanoseconds, PLAIN, "us") == us
    assert units.duration(nanoseconds, PLAIN, "ms") == ms
    assert units.duration(nanoseconds, PLAIN, "s") == s
    assert units.duration(nanoseconds, PLAIN, "ns") == f"{nanoseconds:,} ns"


def test_ascii_has_no_mu() -> None:
    assert units.duration(1000, ASCII) == "1.00 us"
    assert units.edges([1000], ASCII) == ["1 us"]


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (0, "0"),
        (500, "500 ns"),
        (1_500, "1.5 µs"),
        (10_050_000, "10.05 ms"),
        (10**12, "1,000 s"),
        (1_048_576, "1.049 ms"),
    ],
)
def test_edge(nanoseconds: int, shown: str) -> None:
    assert units.edges([nanoseconds], PLAIN) == [shown]


def test_edges_are_told_apart() -> None:
    assert units.edges([10**9, 10**9 + 3], PLAIN) == ["1 s", "1.000000003 s"]
    assert units.plain_edges([0.1, 10485.76]) == ["0.1", "10,490"]
    assert units.plain_edges([10485.76, 10485.77]) == ["10,485.76", "10,485.77"]
    assert units.plain_edges([1_048_576]) == ["1,048,576"]


def test_edge_in_one_unit() -> None:
    assert units.edges([5_000], PLAIN, "s") == ["0.000005 s"]
    assert units.edges([2 * 10**9], PLAIN, "us") == ["2,000,000 µs"]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (-1234567, "-1,234,567"),
        (2**62, "4.61e18"),
        (0.0, "0"),
        (0.25048828125, "0.25"),
        (1.0009765624999998, "1"),
        (1234.5, "1,234"),
        (-0.000123456, "-0.000123"),
        (1e-7, "1e-7"),
        (1.5e300, "1.5e300"),
    ],
)
def test_value(number: int | float, shown: str) -> None:
    assert units.value(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (5, "5"),
        (10**15, "1e15"),
        (0.5005, "0.5005"),
        (-2.5, "-2.5"),
        (20.0, "20"),
        (1e-20, "1e-20"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_plain(number: int | float, shown: str) -> None:
    assert units.plain(number) == shown


@pytest.mark.parametrize(
    ("part", "everything", "shown"),
    [
        (0, 0, "0.0"),
        (0, 5, "0.0"),
        (5, 5, "100.0"),
        (1, 3, "33.3"),
        (1, 100_000, "<0.1"),
        (99_999, 100_000, "99.9"),
    ],
)
def test_share(part: int, everything: int, shown: str) -> None:
    assert units.share(part, everything) == shown


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (0, "0.0 s"),
        (10_040_000_000, "10.0 s"),
        (59_960_000_000, "1 min 0 s"),
        (245_000_000_000, "4 min 5 s"),
        (7_500_000_000_000, "2 h 5 min"),
    ],
)
def test_span(nanoseconds: int, shown: str) -> None:
    assert units.span(nanoseconds) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1_295_000_000, "1.21 GiB"),
        (3000 * 1024**4, "3,000 TiB"),
    ],
)
def test_size(number: int, shown: str) -> None:
    assert units.size(number) == shown


def test_rate() -> None:
    assert units.rate(12_345, 10**10) == "1,234/s"
    assert units.rate(3, 10**10) == "0.3/s"
    assert units.rate(3, 0) == ""
