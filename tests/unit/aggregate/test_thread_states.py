"""Spans, sums, and CPU time of calls, from the scheduler's events."""

from __future__ import annotations

import pytest

from rbtrace_py.aggregate import switches as module
from rbtrace_py.aggregate.calls import CallEvent, CallEventKind, CallStack, ReportedCall
from rbtrace_py.aggregate.switches import (
    CpuOfCalls,
    CpuTimes,
    Span,
    State,
    ThreadStates,
)
from rbtrace_py.model.calls import UNKNOWN_METHOD
from rbtrace_py.model.switches import Switch, SwitchKind

PID, TID = 4, 70
FOUND, WOKEN, ON, OFF, LOST, LEFT = SwitchKind


def switch(time: int, what: SwitchKind, state: str = "", value: int = 0) -> Switch:
    tid = 0 if what in (LOST, LEFT) else TID
    return Switch(0 if what is LOST else PID, tid, time, what, state, value)


def spans(switches: list[Switch], end: int = 100) -> list[tuple[object, ...]]:
    states = ThreadStates()
    found = [span for each in switches for span in states.feed(each)]
    found += states.end(end)
    assert all(span.thread == (PID, TID) for span in found)
    return [(s.start, s.end, s.state.name.lower(), s.cpu) for s in found]


def test_a_thread_s_life() -> None:
    assert spans(
        [
            switch(10, WOKEN),
            switch(11, ON, value=3),
            switch(15, OFF, "R", 3),
            switch(20, ON, value=1),
            switch(30, OFF, "S", 1),
            switch(31, WOKEN),
            switch(33, ON, value=1),
            switch(34, OFF, "D", 1),
            switch(40, WOKEN),
            switch(41, ON, value=0),
            switch(45, OFF, "T", 0),
            switch(60, WOKEN),
            switch(61, ON, value=0),
            switch(70, OFF, "X", 0),
        ]
    ) == [
        (10, 11, "runnable", None),
        (11, 15, "running", 3),
        (15, 20, "runnable", None),
        (20, 30, "running", 1),
        (30, 31, "sleeping", None),
        (31, 33, "runnable", None),
        (33, 34, "running", 1),
        (34, 40, "disk", None),
        (40, 41, "runnable", None),
        (41, 45, "running", 0),
        (45, 60, "stopped", None),
        (60, 61, "runnable", None),
        (61, 70, "running", 0),
    ]


@pytest.mark.parametrize(
    ("found", "then", "was"),
    [
        ("S", (ON, ""), (5, 10, "sleeping", None)),
        ("S", (WOKEN, ""), (5, 10, "sleeping", None)),
        ("D", (WOKEN, ""), (5, 10, "disk", None)),
        # It was read slightly after 5. The first event shows the state at that time.
        ("S", (OFF, "S"), (5, 10, "running", 2)),
        ("R", (OFF, "S"), (5, 10, "running", 2)),
        ("R", (ON, ""), (5, 10, "runnable", None)),
        ("R", (WOKEN, ""), (5, 10, "sleeping", None)),
    ],
)
def test_the_state_when_a_thread_was_found(
    found: str, then: tuple[SwitchKind, str], was: tuple[object, ...]
) -> None:
    first = switch(10, *then, 2)
    assert spans([switch(5, FOUND, found), first])[0] == was
    # Its switch was seen before the thread was found.
    assert spans([first, switch(11, FOUND, found)]) == spans([first])


def test_threads_that_never_switch() -> None:
    assert spans([switch(5, FOUND, "R")]) == [(5, 100, "running", None)]
    assert spans([switch(5, FOUND, "S")]) == [(5, 100, "sleeping", None)]


def test_woken_before_it_slept() -> None:
    assert spans([switch(5, ON, value=1), switch(7, WOKEN)], 9) == [
        (5, 9, "running", 1)
    ]


def test_what_does_not_fit() -> None:
    """The file is not trusted, and no state is invented."""
    assert spans([switch(5, OFF, "?", 1)], 9) == [(5, 9, "sleeping", None)]
    assert spans([switch(5, ON), switch(7, ON)], 9) == [(7, 9, "running", 0)]
    assert spans([switch(5, OFF, "S"), switch(7, OFF, "S")], 9) == [
        (7, 9, "sleeping", None)
    ]
    assert spans([switch(9, ON), switch(5, OFF, "X")]) == []


def test_a_loss_ends_what_is_known() -> None:
    assert spans(
        [switch(5, ON, value=1), switch(8, LOST, value=7), switch(20, OFF, "S")], 30
    ) == [(5, 8, "running", 1), (20, 30, "sleeping", None)]


def test_a_process_that_is_left() -> None:
    states = ThreadStates()
    other = Switch(5, 80, 1, ON, "", 0)
    for each in (switch(1, ON), other):
        assert list(states.feed(each)) == []
    left = list(states.feed(switch(9, LEFT)))
    assert left == [Span((PID, TID), State.RUNNING, 1, 9, 0)]
    assert list(states.now) == [(5, 80)]


def test_sums() -> None:
    times = CpuTimes()
    for each in (
        switch(0, FOUND, "S"),
        switch(10, WOKEN),
        switch(12, ON),
        switch(20, OFF, "S"),
        switch(20, LOST, value=3),
        switch(30, ON),
    ):
        times.feed(each)
    times.end(35)
    (own,) = times.threads.values()
    assert own.ns == {
        State.RUNNING: 13,
        State.RUNNABLE: 2,
        State.SLEEPING: 10,
        State.DISK: 0,
        State.STOPPED: 0,
    }
    assert (own.intervals, times.lost) == (2, 3)


STACK = CallStack(1, TID)


def told(what: CallEventKind, time: int, start: int | None = None) -> ReportedCall:
    return ReportedCall(PID, CallEvent(what, STACK, time, start=start), UNKNOWN_METHOD)


def cpu_of(switches: list[Switch], *calls: tuple[int, int]) -> list[int | None]:
    """Return the CPU time of calls nested in the order of their beginnings."""
    cpu = CpuOfCalls()
    for each in switches:
        cpu.feed(each)
    for start, _ in calls:
        cpu.add(told(CallEventKind.ENTERED, start, start))
    found = []
    for start, end in reversed(calls):
        event = told(CallEventKind.RETURNED, end, start)
        cpu.add(event)
        found.append(event.event.cpu_ns)
    return found[::-1]


LIFE = [
    switch(0, FOUND, "R"),
    switch(10, OFF, "S"),
    switch(20, WOKEN),
    switch(25, ON),
    switch(30, OFF, "R"),
    switch(40, ON),
]


def test_cpu_of_calls() -> None:
    assert cpu_of(LIFE, (2, 60), (5, 50), (26, 28), (27, 28)) == [33, 20, 2, 1]
    assert cpu_of(LIFE, (10, 25), (11, 22)) == [0, 0]
    assert cpu_of(LIFE, (45, 60)) == [15]


def test_cpu_of_calls_that_is_not_known() -> None:
    assert cpu_of(LIFE[1:], (5, 50)) == [None]
    assert cpu_of([], (5, 50)) == [None]
    lost = [*LIFE, switch(45, LOST, value=1), switch(50, OFF, "S"), switch(60, ON)]
    assert cpu_of(lost, (42, 65), (62, 65)) == [None, 3]
    cpu = CpuOfCalls()
    cpu.feed(LIFE[0])
    cpu.add(told(CallEventKind.ENTERED, 1, 1))
    cpu.feed(switch(5, LOST, value=1))
    cpu.feed(switch(6, ON))
    event = told(CallEventKind.RETURNED, 9, 1)
    cpu.add(event)
    assert event.event.cpu_ns is None
    # A return whose call was never seen.
    cpu.add(told(CallEventKind.RETURNED, 9))
    cpu.add(told(CallEventKind.ENDED, 9, 8))


def test_stored_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SPANS", 4)
    cpu = CpuOfCalls()
    cpu.add(told(CallEventKind.ENTERED, 0, 0))
    for at in range(0, 100, 10):
        cpu.feed(switch(at, ON))
        cpu.feed(switch(at + 5, OFF, "S"))
    found = []
    for start, end in ((62, 100), (82, 100)):
        cpu.add(told(CallEventKind.ENTERED, start, start))
        event = told(CallEventKind.RETURNED, end, start)
        cpu.add(event)
        found.append(event.event.cpu_ns)
    # Spans since 60 or since 70 are kept.
    assert found[1] == 8
    assert found[0] in (None, 18)


def test_a_call_from_before_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SPANS", 4)
    cpu = CpuOfCalls()
    cpu.feed(switch(0, ON))
    cpu.add(told(CallEventKind.ENTERED, 1, 1))
    for at in range(10, 100, 10):
        cpu.feed(switch(at - 5, OFF, "S"))
        cpu.feed(switch(at, ON))
    event = told(CallEventKind.RETURNED, 95, 1)
    cpu.add(event)
    assert event.event.cpu_ns == 4 + 8 * 5 + 5


def test_stacks_and_threads_that_are_gone_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_ENDED", 4)
    cpu = CpuOfCalls()
    found = []
    for tid in range(70, 90):
        cpu.feed(Switch(PID, tid, 0, ON))
        cpu.feed(Switch(PID, tid, 20, OFF, "X"))
        # Its calls are read after it has ended.
        stack = CallStack(tid=tid)
        for what in (CallEventKind.ENTERED, CallEventKind.RETURNED):
            time = 5 if what is CallEventKind.ENTERED else 15
            event = CallEvent(what, stack, time, start=5)
            cpu.add(ReportedCall(PID, event, UNKNOWN_METHOD))
        found.append(event.cpu_ns)
    assert found == [10] * 20
    assert cpu._open == {}
    assert list(cpu._threads) == [(PID, tid) for tid in range(86, 90)]


def test_threads_that_end_with_their_process_or_reuse_a_tid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_ENDED", 1)
    cpu = CpuOfCalls()
    for tid in (70, 71):
        cpu.feed(Switch(PID, tid, 0, ON))
    cpu.feed(Switch(PID + 1, 70, 0, ON))
    cpu.feed(Switch(PID, 70, 5, OFF, "X"))
    # A new thread has the number of an ended one.
    cpu.feed(Switch(PID, 70, 6, ON))
    cpu.feed(Switch(PID, 71, 7, OFF, "X"))
    assert (PID, 70) in cpu._threads
    cpu.feed(Switch(PID, 0, 8, LEFT))
    assert [pid for pid, _ in cpu._threads] == [PID, PID + 1]
    cpu.feed(Switch(0, 0, 9, LOST, "", 1))
    cpu.feed(Switch(PID, 70, 10, OFF, "X"))
    assert list(cpu._threads) == [(PID, 70)]
