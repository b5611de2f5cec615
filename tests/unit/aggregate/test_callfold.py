"""Calls folded into trees: counts and times of each path."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nested_calls import CallNesting, fold_stream
from rbtrace_py.aggregate import callfold
from rbtrace_py.aggregate.callfold import DEEPER, CallFold
from rbtrace_py.aggregate.calls import ReportedCall
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, StackCounts
from rbtrace_py.model.calls import (
    CALL_ORPHAN,
    CalledMethod,
    CallKind,
    CallRecord,
    MethodKind,
)
from rbtrace_py.model.stacks import GC_FRAME
from rbtrace_py.report.exchange.callgrind import callgrind_lines
from rbtrace_py.report.sample_query import ReportOptions

KINDS = {"(": CallKind.ENTRY, ")": CallKind.RETURN, "{": CallKind.GC_BEGIN,
         "}": CallKind.GC_END, "!": CallKind.LOST, "]": CallKind.RETURN}  # fmt: skip


def method(number: int) -> CalledMethod:
    return CalledMethod(MethodKind.RUBY, "A", False, chr(number), "/a.rb", 1)


def records(text: str) -> Iterator[CallRecord]:
    """``a( b( ) )``: one word per record, each a nanosecond after the previous one.

    ``]`` is the return of a call that began before, ``!`` loses 3 events, ``.`` is a
    call that is left without a return.
    """
    open_: list[int] = []
    for time, word in enumerate(text.split(), 100):
        if word == ".":
            open_.pop()
            continue
        kind = KINDS[word[-1]]
        number = ord(word[0]) if len(word) > 1 else 0
        depth, flags = len(open_), 0
        if kind == CallKind.ENTRY:
            open_.append(number)
        elif word == ")":
            number = open_.pop()
            depth -= 1
        elif word == "!":
            number = 3
        if word == "]":
            depth, flags = 0, CALL_ORPHAN
        yield (time, number, depth, kind, flags)


@pytest.fixture(params=["events", "records"])
def fold(request: pytest.FixtureRequest) -> Callable[..., CallFold]:
    """Both ways must give the same result."""
    return fold_events if request.param == "events" else fold_records


@pytest.mark.parametrize("pid", [1, 70])
def test_which_thread_is_the_main_one(fold: Callable[..., CallFold], pid: int) -> None:
    """The kernel gives it the process's number."""
    place = [(0, 1, 0, CallKind.STACK, 0), (0xEC, 70, 0, CallKind.PLACE, 0)]
    counts, called = StackCounts(), list(records("a( )"))
    if fold is fold_events:
        found, nesting = CallFold(), CallNesting(pid=pid)
        for record in [*place, *called]:
            for event in nesting.feed(0, record):
                found.add(ReportedCall(pid, event, method(event.method)))
        found.take(counts, {}, None)
    else:
        folded = CallFold(pid)
        fold_stream(folded, pid, [*place, *called])
        folded.take(counts, {}, None, name=method)
    (row,) = counts.rows()
    assert (row.thread.tid, row.thread.is_main) == (70, pid == 70)


def fold_events(text: str, **options: int) -> CallFold:
    found = CallFold(**options)
    nesting = CallNesting()
    last = 0
    for record in records(text):
        last = record[0]
        for event in nesting.feed(0, record):
            found.add(ReportedCall(1, event, method(event.method)))
    for event in nesting.finish(last):
        found.add(ReportedCall(1, event, method(event.method)))
    return found


def fold_records(text: str, **options: int) -> CallFold:
    found = CallFold(1, **options)
    fold_stream(found, 1, records(text))
    found.name_methods(method)
    return found


def stacks(found: CallFold, unit: str = "calls") -> dict[str, int]:
    counts = StackCounts(Statistics(unit, counted="calls"))
    found.take(counts, {}, int if unit == "ns" else None)
    return {
        ";".join(frame.name.removeprefix("A#") for frame in row.frames): row.weight
        for row in counts.rows()
    }


def test_counts_and_own_times(fold: Callable[..., CallFold]) -> None:
    text = "a( b( ) b( c( ) ) ) a( )"
    assert stacks(fold(text)) == {"a": 2, "a;b": 2, "a;b;c": 1}
    # a: 7 - (1 + 3) and 1; b: 1 and 3 - 1.
    assert stacks(fold(text), "ns") == {"a": 4, "a;b": 3, "a;b;c": 1}


def test_recursion(fold: Callable[..., CallFold]) -> None:
    found = fold("a( a( a( ) ) a( ) )")
    assert (found.calls, found.unreturned) == (4, 0)
    assert stacks(found) == {"a": 1, "a;a": 2, "a;a;a": 1}


def test_collections_are_not_the_callers_time(fold: Callable[..., CallFold]) -> None:
    text = "a( { } ) { }"
    name = GC_FRAME.name
    assert stacks(fold(text)) == {"a": 1, f"a;{name}": 1, name: 1}
    assert stacks(fold(text), "ns") == {"a": 2, f"a;{name}": 1, name: 1}


def test_lost_and_unreturned_calls(fold: Callable[..., CallFold]) -> None:
    found = fold("] a( ! b( )")
    assert (found.calls, found.unreturned, found.lost) == (2, 1, 3)
    assert stacks(found, "ns") == {"a": 2, "a;b": 1}


def test_a_stack_that_overflowed(fold: Callable[..., CallFold]) -> None:
    """Calls that its caller makes afterwards belong to the caller."""
    text = "a( r( r( r( . . . { } b( ) )"
    found = fold(text)
    assert (found.calls, found.unreturned) == (5, 3)
    assert stacks(found) == {
        "a": 1, "a;r": 1, "a;r;r": 1, "a;r;r;r": 1,
        f"a;r;r;r;{GC_FRAME.name}": 1, "a;b": 1,
    }  # fmt: skip
    times = stacks(fold(text), "ns")
    assert times == {"a": 8, "a;r": 1, f"a;r;r;r;{GC_FRAME.name}": 1, "a;b": 1}
    assert sum(times.values()) == 11


def test_times_and_numbers_of_calls_in_one(fold: Callable[..., CallFold]) -> None:
    """Callgrind lists 3 calls from one line, which took 5, and a recursive call."""
    found = fold("a( b( ) b( ) b( b( ) ) )")
    calls, counts = StackCounts(), StackCounts(Statistics("ns", counted="calls"))
    found.take(counts, {}, int, calls)
    profile = Profile(counts, calls=calls)
    lines = list(callgrind_lines(profile, ReportOptions()))
    called = [lines[at : at + 2] for at, line in enumerate(lines) if "calls=" in line]
    assert called == [["calls=3 0", "1 5"], ["calls=1 0", "1 0"]]


def test_each_result_begins_at_zero(fold: Callable[..., CallFold]) -> None:
    found = fold("a( )")
    assert stacks(found) == {"a": 1}
    assert stacks(found) == {}


def test_no_room(fold: Callable[..., CallFold]) -> None:
    found = fold("a( b( ) c( d( ) ) ) e( )", max_nodes=2)
    assert stacks(found) == {"a": 1, "a;b": 1, f"a;{OTHER.name}": 2, OTHER.name: 1}
    assert found.other == 3


def test_very_deep(
    fold: Callable[..., CallFold], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callfold, "MAX_FRAMES", 3)
    found = fold("a( " * 6 + ") " * 6)
    last = DEEPER.name
    assert stacks(found) == {"a": 1, "a;a": 1, "a;a;a": 1, f"a;a;a;{last}": 3}


def test_names_are_printable() -> None:
    evil = CalledMethod(MethodKind.C, "A\x1b[31m", True, "b\n", None, None)
    frame = callfold.frame_of(evil)
    assert frame.name.isprintable()
    assert frame.label.isprintable()
