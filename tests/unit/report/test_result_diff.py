"""Results of latency and count, read back from files and compared."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from rbtrace_py.aggregate.hdr import decode, encode
from rbtrace_py.aggregate.histogram import (
    Distribution,
    FloatHistogram,
    Histogram,
    SignedHistogram,
)
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.errors import BadRecording
from rbtrace_py.recording.result_files import read_result
from rbtrace_py.report.exchange.hlog import HlogWriter
from rbtrace_py.report.json.results import document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.result_diff import result_diff_lines

MS = 10**6
OLD = Histogram.from_values([2 * MS] * 90 + [20 * MS] * 10)
NEW = Histogram.from_values([MS] * 45 + [40 * MS] * 5)


def named(result: Result) -> dict[str, Distribution | None]:
    """Return histograms by ``series``, or ``series/key``."""
    return {
        group.series
        if group.key is None
        else f"{group.series}/{group.key}": group.distribution
        for group in result.groups
    }


def lines(before: Result, after: Result, style: Style = PLAIN) -> list[str]:
    return list(result_diff_lines(before, after, ReportOptions(style=style)))


def result(**groups: Histogram) -> Result:
    """One series; names other than ``plain`` are keys of ``--by``."""
    by = None if list(groups) == ["plain"] else "sku"
    made = tuple(
        Group("shop:pay", None if by is None else key, h.count, 0, h)
        for key, h in groups.items()
    )
    return Result("latency", (1,), ("shop:pay",), 0, 10**9, made, by=by, unit="ns")


def hlog(*results: Result) -> str:
    file = StringIO()
    writer = HlogWriter(file, 0)
    for one in results:
        writer.write(one)
    return file.getvalue()


def jsons(*results: Result) -> str:
    return "".join(f"{dumps(document(one))}\n" for one in results)


def read_back(tmp_path: Path, text: str) -> Result:
    path = tmp_path / "result"
    path.write_text(text)
    return read_result(str(path))


def read(tmp_path: Path, text: str) -> dict[str, Distribution | None]:
    return named(read_back(tmp_path, text))


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


def test_intervals_are_one_measurement(tmp_path: Path) -> None:
    first = replace(result(tea=OLD), counters={"lost": 2, "running": 5})
    later = replace(result(tea=NEW, milk=NEW), started_ns=10**9, ended_ns=3 * 10**9)
    later = replace(later, counters={"lost": 1, "running": 4})
    found = read_back(tmp_path, jsons(first, later))
    assert (found.started_ns, found.ended_ns, found.count) == (0, 3 * 10**9, 200)
    assert found.counters == {"lost": 3, "running": 4}


COUNTS = Result("count", (1,), ("a", "b"), 0, 10**9, (Group("a", None, 7),))
VALUES = (
    SignedHistogram.from_values([-3, 5, 10**12]),
    FloatHistogram.from_values([-0.5, 1e300, math.inf, math.nan]),
)


def test_counts_and_values_are_read_back(tmp_path: Path) -> None:
    found = read_back(tmp_path, jsons(COUNTS, COUNTS))
    assert (found.command, found.series, found.count) == ("count", ("a", "b"), 14)
    for values in VALUES:
        group = Group("a", None, values.count, 9, values)
        one = Result("values", (1,), ("a",), 0, 1, (group,), operand="price")
        found = read_back(tmp_path, jsons(one, one))
        assert found.groups[0].distribution == values.merge(values)
        assert (found.operand, found.groups[0].total) == ("price", 18)


def test_methods_are_read_back(tmp_path: Path) -> None:
    one = MethodGroup(
        "method", "A#b", 100, 9 * MS, OLD,
        own=7 * MS, summed=10 * MS, entries=102, longest=21 * MS,
    )  # fmt: skip
    by_class = replace(one, key="A", total=0, has_total=False)
    selected = replace(one, own=None)
    for group in (one, by_class, selected):
        made = Result("latency", (1,), ("method",), 0, 1, (group,), by="method")
        assert read_back(tmp_path, jsons(made)).groups == (group,)


NAMES = ("a,b", "a_b", "a b", "wörld", "\\x2C", "\x1b[m\nx", "\udcff", "e\u0301", "日")


def test_each_key_has_its_own_tag_and_name(tmp_path: Path) -> None:
    """Names are shown as in the report of latency, not escaped twice."""
    made = result(**dict.fromkeys(NAMES, OLD))
    written = hlog(made)
    assert written.isascii()
    tags = [line.split(",")[0] for line in written.splitlines() if line[:4] == "Tag="]
    assert len(set(tags)) == len(NAMES)
    assert tags[:3] == [
        r"Tag=shop:pay/a\x2Cb",
        "Tag=shop:pay/a_b",
        r"Tag=shop:pay/a\sb",
    ]
    found = read_back(tmp_path, written)
    assert [group.series for group in found.groups] == [f"shop:pay/{n}" for n in NAMES]
    shown = [line.split()[0] for line in lines(found, found)[3:]]
    assert {"shop:pay/wörld", r"shop:pay/\\x2C", r"shop:pay/\xFF"} <= set(shown)


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
        jsons(COUNTS) + jsons(replace(COUNTS, by="id")),
        jsons(COUNTS).replace("7", "1e400"),
        jsons(COUNTS).replace("7", str(1 << 70)),
        jsons(COUNTS).replace('"key": null', '"key": [1]'),
        f"9{'9' * 400},1,1,{encode(OLD)}\n",
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
def test_files_that_are_not_results(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRecording, match="neither a recording nor a result"):
        read(tmp_path, text)


def test_codes_of_histograms() -> None:
    assert decode(encode(OLD)) == OLD
    assert decode(encode(Histogram({}))) == Histogram({})
    with pytest.raises(ValueError, match="invalid histogram"):
        decode("no base64")


def test_diff_of_one_series_whatever_its_name() -> None:
    before = replace(result(plain=OLD), series=("a",))
    before = replace(before, groups=(replace(before.groups[0], series="a"),))
    found = lines(before, replace(result(plain=NEW), ended_ns=2 * 10**9))
    assert found[:8] == [
        "shop:pay",
        "              before       after",
        "  count          100          50",
        "  rate         100/s        25/s     -75.0 %",
        "  p50        2.00 ms     1.00 ms     -50.0 %",
        "  p90        2.00 ms     1.00 ms     -50.0 % ?",
        "  p99        20.0 ms     40.0 ms    +100.0 % ?",
        "  max        20.0 ms     40.0 ms",
    ]
    picture = found[9:-1]
    assert picture[0].split() == ["before", "after"]
    shares = [[word for word in line.split() if word != "–"] for line in picture[1:]]
    assert ["90.0", "██████████████", "0.0"] in [row[-3:] for row in shares]
    assert found[-1] == "  ?  may be chance: too few were seen"


def test_diff_of_several() -> None:
    found = lines(result(a=OLD, gone=OLD), result(a=OLD, new=NEW), ASCII)
    heads = [line for line in found if line and line[0] != " "]
    assert heads == ["shop:pay/a", "shop:pay/gone", "shop:pay/new"]
    assert "  p50        2.00 ms     2.00 ms      +0.0 %" in found
    assert "  p50        2.00 ms           -" in found
    assert "  p50              -     1.00 ms" in found
    assert all(line.isascii() for line in found)


def table(*rows: tuple[str, int, int], seconds: int = 1) -> Result:
    """A table of methods: name, calls, and microseconds of each."""
    groups = tuple(
        Group("method", name, calls, 0, Histogram.from_values([us * 1000] * calls))
        for name, calls, us in rows
    )
    groups = tuple(
        replace(group, total=group.count * us * 1000)
        for group, (_, _, us) in zip(groups, rows, strict=True)
    )
    return Result(
        "latency", (1,), ("method",), 0, seconds * 10**9, groups, by="method", unit="ns"
    )


def test_methods_are_ranked_by_the_change_of_their_time() -> None:
    before = table(("A#same", 900, 10), ("A#few", 11, 47), ("A#slow", 500, 20))
    after = table(
        ("A#same", 1800, 10), ("A#few", 16, 1), ("A#slow", 1000, 24_000),
        ("A#new", 2000, 1), seconds=2,
    )  # fmt: skip
    assert lines(before, after) == [
        "method: time per second",
        "",
        "  method   before    after    change    calls        p50",
        "  A#slow  10.0 ms   12.0 s   +12.0 s   +0.0 %     ×1,199",
        "  A#new      0 ns  1.00 ms  +1.00 ms      new",
        "  A#few    517 µs  8.00 µs   -509 µs  -27.3 % ?  -97.9 %",
        "  A#same  9.00 ms  9.00 ms     +0 ns   +0.0 %     +0.0 %",
        "  ?  may be chance: too few were seen",
    ]


def test_counts_are_compared_per_second() -> None:
    before = replace(COUNTS, groups=(Group("a", None, 100), Group("b", None, 11)))
    after = replace(COUNTS, groups=(Group("a", None, 400), Group("b", None, 16)))
    found = lines(before, replace(after, ended_ns=2 * 10**9))
    assert found == [
        "events per second",
        "",
        "     before  after    change",
        "  a     100    200  +100.0 %",
        "  b      11      8   -27.3 % ?",
        "  ?  may be chance: too few were seen",
    ]


def test_the_mark_is_explained_in_color_too() -> None:
    before = replace(COUNTS, groups=(Group("b", None, 11),))
    after = replace(COUNTS, groups=(Group("b", None, 8),))
    legend = "may be chance: too few were seen"
    assert legend in lines(before, after, Style(colour=True))[-1]
    same = replace(COUNTS, groups=(Group("is it ? b", None, 11),))
    assert legend not in lines(same, same)[-1]


def test_many_rows_are_cut() -> None:
    rows = [(f"A#m{number}", 10 * number, 10) for number in range(1, 41)]
    found = lines(table(), table(*rows))
    assert found[3].split()[0] == "A#m40"
    assert "  10 smaller changes; --rows 40 shows all" in found
