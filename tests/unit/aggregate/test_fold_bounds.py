"""Recordings in which threads keep changing need bounded memory."""

from __future__ import annotations

import pytest

from nested_calls import fold_stream
from rbtrace_py.aggregate import callfold
from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import CallEvent, CallEventKind, CallStack, ReportedCall
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.calls import CalledMethod, CallKind, CallRecord, MethodKind

METHOD = CalledMethod(MethodKind.RUBY, "A", False, "a", "/a.rb", 1)
THREADS, MOST = 50, 8


def told(what: CallEventKind, stack: CallStack) -> ReportedCall:
    return ReportedCall(7, CallEvent(what, stack, 10, start=5), METHOD)


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callfold, "MAX_THREADS", MOST)
    monkeypatch.setattr(callfold, "_MAX_STACKS", MOST)


def threads_of(counts: StackCounts) -> dict[int | None, int]:
    """Return how many calls each thread has."""
    found: dict[int | None, int] = {}
    for row in counts.rows():
        tid = row.thread.tid if row.thread else None
        found[tid] = found.get(tid, 0) + row.weight
    return found


def test_events() -> None:
    fold = CallFold()
    for number in range(THREADS):
        stack = CallStack(number, number + 1)
        fold.add(told(CallEventKind.ENTERED, stack))
        fold.add(told(CallEventKind.RETURNED, stack))
    counts = StackCounts()
    fold.take(counts, {}, None)
    found = threads_of(counts)
    assert found.pop(None) == THREADS - MOST
    assert found == dict.fromkeys(range(1, MOST + 1), 1)
    assert fold.calls == THREADS


def test_events_of_calls_that_never_end() -> None:
    fold = CallFold()
    stacks = [CallStack(number, 1) for number in range(THREADS)]
    for stack in stacks:
        fold.add(told(CallEventKind.ENTERED, stack))
    for stack in stacks:
        fold.add(told(CallEventKind.RETURNED, stack))
    assert fold.calls == MOST


def test_records() -> None:
    fold = CallFold(7)
    records: list[CallRecord] = []
    for number in range(THREADS):
        records += [
            (0, number + 1, 0, CallKind.STACK, 0),
            (0xEC, number + 1, 0, CallKind.PLACE, 0),
            (5, 1, 0, CallKind.ENTRY, 0),
            (10, 1, 0, CallKind.RETURN, 0),
        ]
    fold_stream(fold, 7, records)
    counts = StackCounts()
    fold.take(counts, {}, None, name=lambda index: METHOD)
    found = threads_of(counts)
    assert found.pop(None) == THREADS - MOST
    assert found == dict.fromkeys(range(1, MOST + 1), 1)
