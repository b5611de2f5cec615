"""Two results of latency, read back from both kinds of files and compared."""

from __future__ import annotations

import base64
import zlib
from io import StringIO
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from rbtrace_py.aggregate.hdr import decode, encode
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.latencies import read_latencies
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.errors import BadRecording
from rbtrace_py.report.exchange.hlog import HlogWriter
from rbtrace_py.report.json.results import document, dumps
from rbtrace_py.report.style import ASCII, PLAIN
from rbtrace_py.report.terminal.latency_diff import latency_diff_lines

MS = 10**6
OLD = Histogram.from_values([2 * MS] * 90 + [20 * MS] * 10)
NEW = Histogram.from_values([MS] * 45 + [40 * MS] * 5)


def result(**groups: Histogram) -> Result:
    """One series, or with names other than ``plain`` one of ``--by``."""
    by = None if list(groups) == ["plain"] else "sku"
    made = tuple(
        Group("shop:pay", None if by is None else key, h.count, 0, h)
        for key, h in groups.items()
    )
    return Result("latency", (1,), ("shop:pay",), 0, 10**9, made, by=by)


def hlog(*results: Result) -> str:
    file = StringIO()
    writer = HlogWriter(file, 0)
    for one in results:
        writer.write(one)
    return file.getvalue()


def jsons(*results: Result) -> str:
    return "".join(f"{dumps(document(one))}\n" for one in results)


def read(tmp_path: Path, text: str) -> dict[str, Histogram]:
    path = tmp_path / "result"
    path.write_text(text)
    return read_latencies(str(path))


@pytest.mark.parametrize("form", [hlog, jsons])
def test_files_are_read_back(tmp_path: Path, form: object) -> None:
    assert callable(form)
    (found,) = read(tmp_path, form(result(plain=OLD))).values()
    assert found == OLD
    assert read(tmp_path, form(result(tea=OLD, milk=NEW))) == {
        "shop:pay/tea": OLD,
        "shop:pay/milk": NEW,
    }
    (both,) = read(tmp_path, form(result(plain=OLD), result(plain=NEW))).values()
    assert both == OLD.merge(NEW)
    coarse = OLD.with_digits(2)
    (found,) = read(tmp_path, form(result(plain=coarse))).values()
    assert found == coarse != OLD


def test_a_log_of_another_tool(tmp_path: Path) -> None:
    """Two digits, another range, no legend."""
    other = HdrHistogram(1, 10**7, 2)
    for value in (5, 500, 500, 123_456):
        other.record_value(value)
    line = f"0.127,1.007,2.769,{other.encode().decode()}\n"
    (found,) = read(tmp_path, f"#[Some comment]\n{line}").values()
    assert found.count == 4
    assert found.percentile(50) == other.get_value_at_percentile(50) == 501
    assert found.max == pytest.approx(123_456, rel=0.02)


BOMB = base64.b64encode(bytes(8) + zlib.compress(bytes(1 << 26))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "{",
        "{}",
        "[1]",
        '{"schema": "rbtrace-py/count", "version": 1}',
        '{"schema": "rbtrace-py/latency", "version": 2}',
        '{"schema": "rbtrace-py/latency", "version": 1, "by": null, "groups": 3}',
        '{"schema": "rbtrace-py/latency", "version": 1, "by": null, "groups": '
        '[{"series": "a", "buckets": [[-1, 2, 3]]}]}',
        "0.1,0.1,0.1,####\n",
        "0.1,0.1,0.1,AAAA\n",
        f"0.1,0.1,0.1,{encode(OLD)[:40]}\n",
        f"0.1,0.1,0.1,{BOMB}\n",
        "[" * 100_000,
        "{" + '"a":' * 3 + "[" * 100_000,
    ],
)
def test_what_is_none_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRecording, match="neither a recording nor a latency result"):
        read(tmp_path, text)


def test_codes_of_histograms() -> None:
    assert decode(encode(OLD)) == OLD
    assert decode(encode(Histogram({}))) == Histogram({})
    with pytest.raises(ValueError, match="no histogram"):
        decode("no base64")


def test_diff_of_one_series_whatever_its_name() -> None:
    lines = list(latency_diff_lines({"": OLD}, {"shop:pay": NEW}, PLAIN))
    assert lines[:7] == [
        "shop:pay",
        "              before       after",
        "  count          100          50     -50.0 %",
        "  p50        2.00 ms     1.00 ms     -50.0 %",
        "  p90        2.00 ms     1.00 ms     -50.0 %",
        "  p99        20.0 ms     40.0 ms    +100.0 %",
        "  max        20.0 ms     40.0 ms    +100.0 %",
    ]
    picture = lines[8:]
    assert picture[0].split() == ["before", "after"]
    shares = [[word for word in line.split() if word != "–"] for line in picture[1:]]
    assert ["90.0", "██████████████", "0.0"] in [row[-3:] for row in shares]
    assert lines[-1] == ""


def test_diff_of_several() -> None:
    before = {"a": OLD, "gone": OLD}
    after = {"a": OLD, "new": NEW}
    lines = list(latency_diff_lines(before, after, ASCII))
    assert [line for line in lines if line and line[0] != " "] == ["a", "gone", "new"]
    assert "  p50        2.00 ms     2.00 ms      +0.0 %" in lines
    assert "  p50        2.00 ms           -" in lines
    assert "  p50              -     1.00 ms" in lines
    assert all(line.isascii() for line in lines)
