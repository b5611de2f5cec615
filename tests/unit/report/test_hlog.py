"""HdrHistogram logs, read back by the HdrHistogram library."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from rbtrace_py.aggregate.histogram import Histogram, SignedHistogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.report.exchange.hlog import HlogWriter

SECOND = 10**9
START = 1_700_000_000 * SECOND
FIRST = Histogram.from_values([0, 5, 5, 999, 123_456_789])
SECOND_ONE = Histogram.from_values([7, 2**41])


def result(*groups: Group, by: str | None = None) -> Result:
    series = tuple(dict.fromkeys(group.series for group in groups)) or ("shop:pay",)
    ended = START + SECOND
    return Result("latency", (1,), series, START, ended, groups, by=by)


def group(values: Histogram, key: str | None = None, series: str = "shop:pay") -> Group:
    return Group(series, key, values.count, 0, values)


def later(one: Result, seconds: float) -> Result:
    offset = int(seconds * SECOND)
    return replace(
        one, started_ns=one.started_ns + offset, ended_ns=one.ended_ns + offset
    )


def written(*results: Result) -> str:
    file = io.StringIO()
    writer = HlogWriter(file, START)
    for one in results:
        writer.write(one)
    return file.getvalue()


def read(text: str, path: Path) -> list[HdrHistogram]:
    path.write_text(text, encoding="ascii")
    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000_000, 3))
    found = []
    while (histogram := reader.get_next_interval_histogram()) is not None:
        found.append(histogram)
    reader.close()
    return found


def same(read_back: HdrHistogram, ours: Histogram) -> bool:
    return ours.count == read_back.get_total_count() and all(
        ours.percentile(p) == read_back.get_value_at_percentile(p)
        for p in (0, 10, 50, 90, 99, 100)
    )


def test_head() -> None:
    assert written() == (
        "#[Logged with rbtrace-py; values are nanoseconds]\n"
        "#[Histogram log format version 1.3]\n"
        "#[BaseTime: 1700000000.000 (seconds since epoch)]\n"
        "#[StartTime: 1700000000.000 (seconds since epoch), 2023-11-14 22:13:20 UTC]\n"
        '"StartTimestamp","Interval_Length","Interval_Max",'
        '"Interval_Compressed_Histogram"\n'
    )


def test_round_trip(tmp_path: Path) -> None:
    text = written(result(group(FIRST)), later(result(group(SECOND_ONE)), 1.5))
    lines = text.splitlines()[5:]
    assert lines[0].startswith("0.000,1.000,123.470,HISTFAAAA")
    assert lines[1].startswith("1.500,1.000,2201170.739,HISTFAAAA")
    first, second = read(text, tmp_path / "one.hlog")
    assert same(first, FIRST)
    assert same(second, SECOND_ONE)
    assert first.get_start_time_stamp() == START / 10**6
    assert second.get_end_time_stamp() == START / 10**6 + 2500
    assert first.get_tag() is None


def test_an_interval_without_values_has_its_line(tmp_path: Path) -> None:
    text = written(result(), result(group(FIRST)))
    empty, first = read(text, tmp_path / "one.hlog")
    assert empty.get_total_count() == 0
    assert same(first, FIRST)


def test_series_and_keys_are_tags(tmp_path: Path) -> None:
    text = written(
        result(group(FIRST), group(SECOND_ONE, series="shop:a b,c")),
        result(group(FIRST, "tea\nmilk"), group(SECOND_ONE), by="sku"),
    )
    found = read(text, tmp_path / "one.hlog")
    tags = [histogram.get_tag() for histogram in found]
    assert tags == [
        "shop:pay",
        r"shop:a\sb\x2Cc",
        r"shop:pay/tea\nmilk",
        "shop:pay/nil",
    ]
    assert same(found[3], SECOND_ONE)


def test_values_beyond_an_hour_are_not_lost(tmp_path: Path) -> None:
    far = Histogram.from_values([1, 2**50])
    (found,) = read(written(result(group(far))), tmp_path / "one.hlog")
    assert same(found, far)


def test_only_whole_lines_are_written() -> None:
    pieces: list[str] = []

    class File(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    HlogWriter(File(), START).write(result(group(FIRST)))
    assert len(pieces) == 6
    assert all(piece.count("\n") == 1 and piece[-1] == "\n" for piece in pieces)


def test_signed_values_are_no_latencies() -> None:
    values = SignedHistogram.from_values([-1])
    with pytest.raises(TypeError, match="shop:pay holds no latencies"):
        written(result(Group("shop:pay", None, 1, 0, values)))
