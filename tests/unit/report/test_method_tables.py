"""Tables of methods, as text and as JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.methods import METHODS, MethodRow, group_rows
from rbtrace_py.aggregate.results import Result
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report.json.results import document
from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.methods import SORTS, counts_report, methods_report

MS = 1_000_000
HOSTILE = "A\x1b[31m\u202e" + "é" * 90


def row(owner: str, name: str, values: list[int], own: int) -> MethodRow:
    method = CalledMethod(MethodKind.RUBY, owner, False, name, "/a.rb", 3)
    histogram = Histogram.from_values(values)
    total = sum(values)
    return MethodRow(1, method, len(values), len(values), total, own, total,
                     max(values), histogram)  # fmt: skip


ROWS = [
    row("Order", "total", [9 * MS, 1 * MS], 2 * MS),
    row("Cart", "add", [3 * MS] * 3, 8 * MS),
    row("Cart", "price", [1 * MS] * 4, 4 * MS),
]


def result(
    rows: list[MethodRow], command: str = "latency", by: str | None = "method"
) -> Result:
    groups = group_rows(
        rows, dict.fromkeys(METHODS, "method"), by, command == "latency"
    )
    return Result(command, (1,), ("method",), 0, 2 * 10**9, tuple(groups), {}, by, "ns")


def names(sort: str) -> list[str]:
    lines = list(methods_report(result(ROWS), PLAIN, sort=sort))
    return [line.split()[0].partition("#")[2] for line in lines[3:6]]


@pytest.mark.parametrize("command", ["latency", "count"])
def test_names_are_whole_where_programs_read_them(command: str) -> None:
    """All columns are aligned, however long a name is."""
    name = "Shop::Checkout::" + "Nested::" * 12 + "Order"
    found = result([row(name, "total", [MS], MS), ROWS[0]], command)
    report = methods_report if command == "latency" else counts_report
    lines = list(report(found, replace(PLAIN, is_whole=True)))
    (long,) = (line for line in lines if f"  {name}#total  " in line)
    (short,) = (line for line in lines if "  Order#total  " in line)
    assert 80 < len(long) == len(short)
    assert all("…" in line for line in report(found, PLAIN) if "Nested" in line)


def test_the_table() -> None:
    first, *lines = methods_report(result(ROWS), PLAIN, "ms")
    assert first.split() == ["method", "9", "in", "2.0", "s", "4.5/s"]
    assert lines == [
        "",
        "  method       calls  total ms  self ms  p50 ms  p99 ms  max ms",
        "  Order#total      2    10.000    2.000   1.000   9.000   9.000",
        "  Cart#add         3     9.000    8.000   3.000   3.000   3.000",
        "  Cart#price       4     4.000    4.000   1.000   1.000   1.000",
        "",
        "  no losses",
    ]


def test_calls_that_never_returned() -> None:
    """A stack overflow leaves such calls, which have no times."""
    method = CalledMethod(MethodKind.RUBY, "Work", False, "deeper", "/a.rb", 3)
    rows = [*ROWS[:1], MethodRow(1, method, 30_234)]
    found = replace(result(rows), counters={"abandoned": 30_234})
    for sort in SORTS:
        lines = list(methods_report(found, PLAIN, "ms", sort=sort))
        assert "calls  no return  total ms" in lines[2]
        assert [line.split() for line in lines[3:5]] == [
            ["Order#total", "2", "0", "10.000", "2.000", "1.000", "9.000", "9.000"],
            ["Work#deeper", "0", "30,234", "-", "-", "-", "-", "-"],
        ]


def test_calls_that_are_still_running() -> None:
    """The notes mention them. A row or a column appears only for completed calls."""
    method = CalledMethod(MethodKind.RUBY, "Report", False, "run", "/a.rb", 3)
    rows = [*ROWS[:1], MethodRow(1, method, 1)]
    found = replace(result(rows), counters={"abandoned": 0, "running": 1})
    lines = list(methods_report(found, PLAIN, "ms"))
    assert lines[2].split()[:3] == ["method", "calls", "total"]
    assert [line.split()[0] for line in lines[3:4]] == ["Order#total"]
    assert lines[4:] == ["", "  1 call has not returned yet", "  no losses"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("total", ["total", "add", "price"]),
        ("self", ["add", "price", "total"]),
        ("calls", ["price", "add", "total"]),
        ("p50", ["add", "total", "price"]),
        ("p99", ["total", "add", "price"]),
        ("max", ["total", "add", "price"]),
    ],
)
def test_orders(sort: str, expected: list[str]) -> None:
    assert sort in SORTS
    assert names(sort) == expected


@pytest.mark.parametrize("sort", ["total", "self"])
def test_several_methods_together_have_no_total(sort: str) -> None:
    """A class's methods may call each other, so only their own times add up."""
    lines = list(methods_report(result(ROWS, by="class"), PLAIN, "ms", sort=sort))
    assert lines[2:5] == [
        "  class  calls  self ms  p50 ms  p99 ms  max ms",
        "  Cart       7   12.000   1.000   3.000   3.000",
        "  Order      2    2.000   1.000   9.000   9.000",
    ]
    groups = document(result(ROWS, by="class"))["groups"]
    assert [group["total"] for group in groups] == [None, None]  # type: ignore


def test_selected_methods_have_no_self_time() -> None:
    """Most of the time below them may be in methods that are not hooked."""
    selected = [replace(each, own=None) for each in ROWS]
    found = result(selected)
    lines = list(methods_report(found, PLAIN, "ms"))
    assert lines[2:4] == [
        "  method       calls  total ms  p50 ms  p99 ms  max ms",
        "  Order#total      2    10.000   1.000   9.000   9.000",
    ]
    groups = document(found)["groups"]
    assert [group["self"] for group in groups] == [None] * 3  # type: ignore
    lines = list(methods_report(result(selected, by="class"), PLAIN))
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["class", "calls"],
        ["Cart", "7"],
        ["Order", "2"],
    ]
    assert "self" not in "".join(lines)


def test_only_the_first_rows() -> None:
    lines = list(methods_report(result(ROWS), PLAIN, top=1))
    assert lines[3].split()[0] == "Order#total"
    assert lines[4] == "  and 2 more (--top shows more of them)"


def test_the_highest_of_a_picture_is_exact() -> None:
    """The maximum is exact, as in the table, although its bucket has two digits."""
    rows = [row("Order", "total", [83_411_000], MS)]
    lines = list(methods_report(result(rows), PLAIN, pictures=True))
    facts = " ".join(lines).split()
    highest = [facts[place + 1] for place, word in enumerate(facts) if word == "max"]
    assert highest[0] == "83.4"
    assert facts[facts.index("p50") + 1] == "83.4"


def test_few_methods_have_pictures() -> None:
    lines = list(methods_report(result(ROWS[:1]), PLAIN, pictures=True))
    assert any("p99.9" in line for line in lines)
    assert lines[-3].startswith("  Order#total")
    assert "  sum %" not in "".join(lines)  # of two calls: rows of zeros
    many = [row("Order", "total", [time * MS for time in range(1, 40)], MS)]
    lines = list(methods_report(result(many), PLAIN, pictures=True))
    assert any("  sum %" in line for line in lines)
    assert not any("p99.9" in line for line in methods_report(result(ROWS), PLAIN))


@pytest.mark.parametrize("style", [PLAIN, ASCII, Style(width=40)])
def test_hostile_names_fit(style: Style) -> None:
    rows = [row(HOSTILE, "total", [MS] * 12345, 1), *ROWS]
    lines = list(methods_report(result(rows), style))
    lines += counts_report(result(rows, "count"), style)
    assert max(map(len, lines)) <= style.width
    assert all(line.isprintable() for line in lines)
    # The end of a name says more than its beginning.
    assert any("#total " in line for line in lines if "345" in line)


def test_modules_go_whole() -> None:
    rows = [row("Outer::Puma::Server", "process_client", [MS] * 12345, 1)]
    for columns, name in (
        (89, "Outer::Puma::Server#process_client"),
        (85, "…::Puma::Server#process_client"),
        (80, "…::Server#process_client"),
        (74, "…ver#process_client"),
    ):
        style = Style(width=columns)
        (line,) = list(methods_report(result(rows), style, "ms"))[3:4]
        assert line.split()[0] == name


def test_counts() -> None:
    assert list(counts_report(result(ROWS, "count", "class"), PLAIN))[2:] == [
        "  class  count     %   rate",
        "  Cart       7  77.8  3.5/s",
        "  Order      2  22.2    1/s",
        "",
        "  no losses",
    ]
    lines = list(counts_report(result(ROWS, "count", None), PLAIN))
    assert lines[3].split() == ["method", "9", "100.0", "4.5/s"]


def test_nothing() -> None:
    assert list(methods_report(result([]), PLAIN))[1:] == ["", "  no losses"]
    assert list(counts_report(result([], "count"), PLAIN))[-1] == "  no losses"


def test_json() -> None:
    group = document(result(ROWS[:1]))["groups"][0]  # type: ignore[index]
    expected = {
        "key": "Order#total", "count": 2, "entries": 2, "total": 10 * MS,
        "self": 2 * MS, "sum": 10 * MS, "max": 9 * MS, "class": "Order",
        "method": "total", "singleton": False, "c": False, "path": "/a.rb", "line": 3,
    }  # fmt: skip
    assert {name: group[name] for name in expected} == expected
    group = document(result(ROWS[:1], "count"))["groups"][0]  # type: ignore[index]
    assert "self" not in group
    assert (group["count"], group["method"]) == (2, "total")
