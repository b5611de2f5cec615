"""Notes on data that a result lacks."""

from __future__ import annotations

from rbtrace_py.aggregate.histogram import FloatHistogram
from rbtrace_py.aggregate.results import Group, Result, lost
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.notes import (
    cost_lines,
    counter_lines,
    note_lines,
    sentence,
)

NAMES = [
    "raised",
    "thrown",
    "running_at_attach",
    "no_begin",
    "open_begins",
    "beyond_range",
    "negative",
    "nil",
    "filtered",
    "late_probes",
    "lost",
    "kernel_missed",
    "no_room",
    "too_deep",
    "unreadable",
]


def test_cost() -> None:
    costs = [
        HitCost(1, 1_600, 10**9),
        HitCost(2_000_000, 10**9, 4 * 10**9),
        HitCost(0, 0, 10**9),
        None,
    ]
    assert [text for cost in costs for text in cost_lines(cost, PLAIN)] == [
        "  cost: 1 hit of probes at 1.6 µs each, less than 0.1 % of a CPU",
        "  cost: 2,000,000 hits of probes at 0.5 µs each, 25.0 % of a CPU",
    ]


def test_one_of_each() -> None:
    assert list(counter_lines(dict.fromkeys(NAMES, 1), PLAIN)) == [
        "  1 span raised an exception (included above)",
        "  1 span was left by throw or break (included above)",
        "  1 was running when tracing began and has returned",
        "  1 end without a begin",
        "  1 begin without an end so far",
        "  1 value was out of range",
        "  1 value was negative: the clock went backwards",
        "  1 value was nil",
        "  1 event did not match the filter",
        "  1 probe appeared during tracing; its earlier events are missing",
        "  1 event was lost: the buffer was full",
        "  1 hit was missed by the kernel",
        "  1 event was lost: the kernel's map was full",
        "  1 event was lost: nested too deeply",
        "  1 event was lost: an argument could not be read",
    ]


def test_many_of_each() -> None:
    assert list(counter_lines(dict.fromkeys(NAMES, 1234), PLAIN)) == [
        "  1,234 spans raised exceptions (included above)",
        "  1,234 spans were left by throw or break (included above)",
        "  1,234 were running when tracing began and have returned",
        "  1,234 ends without a begin",
        "  1,234 begins without an end so far",
        "  1,234 values were out of range",
        "  1,234 values were negative: the clock went backwards",
        "  1,234 values were nil",
        "  1,234 events did not match the filter",
        "  1,234 probes appeared during tracing; their earlier events are missing",
        "  1,234 events were lost: the buffer was full",
        "  1,234 hits were missed by the kernel",
        "  1,234 events were lost: the kernel's map was full",
        "  1,234 events were lost: nested too deeply",
        "  1,234 events were lost: an argument could not be read",
    ]


def test_zeros_are_left_out_except_for_no_losses() -> None:
    nothing = ["  no losses"]
    assert list(counter_lines(dict.fromkeys(NAMES, 0), PLAIN)) == nothing
    assert list(counter_lines({}, PLAIN)) == nothing
    assert list(counter_lines({"nil": 2}, PLAIN)) == ["  2 values were nil", *nothing]


def test_an_unknown_counter_is_shown() -> None:
    assert sentence("of_a_\x1bkind", 3, PLAIN) == r"of a \ekind: 3"


def test_lost() -> None:
    assert lost(dict.fromkeys(NAMES, 1)) == 5
    assert lost({"nil": 7}) == 0


def test_values_in_no_bucket_are_noted() -> None:
    values = FloatHistogram.from_values([float("nan"), float("inf"), 1.0])
    groups = (Group("a:b", None, 3, 0, values), Group("a:c", None, 3, 0, values))
    result = Result("values", (1,), ("a:b", "a:c"), 0, 1, groups, {"nil": 1})
    assert list(note_lines(result, PLAIN)) == [
        "  1 value was nil",
        "  2 values were Infinity",
        "  2 were NaN",
        "  no losses",
    ]
