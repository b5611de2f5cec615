"""Rows of methods, grouped and subtracted."""

from __future__ import annotations

from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.methods import METHODS, MethodGroup, MethodRow, group_rows
from rbtrace_py.aggregate.results import Result
from rbtrace_py.model.calls import CalledMethod, MethodKind

SERIES = dict.fromkeys(METHODS, "method")
TOTAL = CalledMethod(MethodKind.RUBY, "Order", False, "total", "/a.rb", 3)
FIND = CalledMethod(MethodKind.RUBY, "Order", True, "find", "/a.rb", 9)


def row(method: CalledMethod, values: list[int], pid: int = 1) -> MethodRow:
    count = len(values)
    longest = max(values, default=0)
    summed = sum(values)
    histogram = Histogram.from_values(values)
    return MethodRow(pid, method, count + 1, count, summed - 1, summed // 2,
                     summed, longest, histogram)  # fmt: skip


def groups(*rows: MethodRow, by: str | None, is_timed: bool = True) -> dict:
    found = group_rows(rows, SERIES, by, is_timed)
    return {group.key: group for group in found}


def test_by_method() -> None:
    found = groups(row(TOTAL, [10, 20]), row(FIND, [5]), by="method")
    assert list(found) == ["Order#total", "Order.find"]
    group = found["Order#total"]
    assert (group.count, group.entries, group.total) == (2, 3, 29)
    assert (group.own, group.summed, group.highest) == (15, 30, 20)
    assert group.method == TOTAL


def test_the_same_method_in_two_processes() -> None:
    found = groups(row(TOTAL, [10]), row(TOTAL, [30, 20], pid=2), by="method")
    group = found["Order#total"]
    assert (group.count, group.summed, group.highest) == (3, 60, 30)
    assert group.distribution == Histogram.from_values([10, 20, 30])
    assert group.method == TOTAL


def test_methods_of_one_name_from_two_places() -> None:
    other = CalledMethod(MethodKind.RUBY, "Order", False, "total", "/b.rb", 3)
    found = group_rows([row(TOTAL, [1]), row(other, [2])], SERIES, "method", True)
    assert [(group.key, group.count) for group in found] == [("Order#total", 1)] * 2
    assert len({group.identity for group in found}) == 2


def test_by_class_and_pid_there_is_no_total() -> None:
    """One method may call the other, but their own times add up."""
    rows = [row(TOTAL, [10, 20]), row(FIND, [5], pid=2)]
    by_class = groups(*rows, by="class")
    group = by_class["Order"]
    assert (group.count, group.has_total, group.total) == (3, False, 0)
    assert (group.own, group.summed) == (17, 35)
    assert by_class["Order"].method is None
    assert {key: g.count for key, g in groups(*rows, by="pid").items()} == {1: 2, 2: 1}


def test_collections_have_a_total_by_pid() -> None:
    """Collections are never nested."""
    gc = CalledMethod(MethodKind.GC, None, False, None)
    (group,) = group_rows([row(gc, [2, 3])], {MethodKind.GC: "gc"}, "pid", True)
    assert (group.has_total, group.total) == (True, 4)


def test_counted() -> None:
    found = groups(row(TOTAL, [10, 20]), by="class", is_timed=False)
    assert (found["Order"].count, found["Order"].distribution) == (3, None)


def test_methods_without_a_name() -> None:
    nothing = CalledMethod(MethodKind.NO_ROOM, None, False, None)
    gc = CalledMethod(MethodKind.GC, None, False, None)
    series = {**SERIES, MethodKind.GC: "gc"}
    found = group_rows([row(nothing, [1]), row(gc, [2])], series, "class", True)
    assert [group.key for group in found] == ["(no room)", "(garbage collection)"]


def test_other_series_are_left_out() -> None:
    raised = CalledMethod(MethodKind.RAISE, "Oops", False, None)
    assert groups(row(raised, [1]), by="class") == {}


def test_an_interval() -> None:
    def result(*rows: MethodRow) -> Result:
        found = tuple(group_rows(rows, SERIES, "method", True))
        return Result("latency", (1,), ("method",), 0, 1, found, {"running": 1},
                      "method", "ns")  # fmt: skip

    before = result(row(TOTAL, [10, 20]), row(FIND, [5]))
    after = result(row(TOTAL, [10, 20, 6]), row(FIND, [5]))
    found = after.minus(before)
    assert found.counters == {"running": 1}
    (group,) = found.groups
    assert isinstance(group, MethodGroup)
    assert (group.key, group.count, group.summed, group.own) == ("Order#total", 1, 6, 3)
    assert group.distribution == Histogram.from_values([6])
    # The longest of all is not the longest of these.
    assert (group.longest, group.highest) == (None, 6)
