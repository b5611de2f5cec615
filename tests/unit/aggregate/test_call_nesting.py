"""Calls put together from records, as docs/agent/memory.md says how."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

import pytest

from nested_calls import CallNesting
from processes import times
from rbtrace_py.aggregate.call_interpreter import MAX_DEPTH
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.model.calls import CallRecord

ENTRY, RETURN, C_ENTRY, C_RETURN, LOST, GC_BEGIN, GC_END, RAISE = range(1, 9)
CPU, STACK, PLACE, THREAD, TEXT = range(10, 15)
SEED = 20_260_104
ReportedCall = tuple[str, int, int, int | None]


def told(records: Iterable[CallRecord], has_cpu: bool = False) -> list[ReportedCall]:
    """Return the events: kind, method, depth, and duration."""
    nesting = CallNesting(has_cpu)
    events = [event for record in records for event in nesting.feed(0, record)]
    events += nesting.finish(1000)
    return [
        (event.what.name, event.method, event.depth, event.duration)
        for event in events
        if event.what is not CallEventKind.ENTERED
    ]


def test_nested_calls() -> None:
    records = [
        (10, 1, 0, ENTRY, 0),
        (12, 2, 1, C_ENTRY, 0),
        (15, 2, 1, C_RETURN, 0),
        (20, 1, 0, RETURN, 0),
    ]
    assert told(records) == [("RETURNED", 2, 1, 3), ("RETURNED", 1, 0, 10)]


def test_recursion() -> None:
    records = [(t, 1, t, ENTRY, 0) for t in range(4)]
    records += [(10 + d, 1, 3 - d, RETURN, 0) for d in range(4)]
    assert [event[2:] for event in told(records)] == [(3, 7), (2, 9), (1, 11), (0, 13)]


def test_calls_without_inner_calls_are_leaves() -> None:
    nesting = CallNesting()
    records = [
        (1, 1, 0, ENTRY, 0),
        (2, 2, 1, ENTRY, 0),
        (3, 2, 1, RETURN, 0),
        (4, 1, 0, RETURN, 0),
    ]
    events = [event for record in records for event in nesting.feed(0, record)]
    assert [(e.method, e.is_leaf) for e in events[2:]] == [(2, True), (1, False)]
    assert nesting.stacks[0].open == []


def test_an_entry_ends_what_is_as_deep() -> None:
    records = [(1, 1, 0, ENTRY, 0), (2, 2, 1, ENTRY, 0), (3, 3, 0, ENTRY, 0)]
    assert told(records)[:2] == [("ENDED", 2, 1, 0), ("ENDED", 1, 0, 1)]


def test_a_return_ends_what_is_deeper() -> None:
    """They end when they were last seen. Later events are unknown."""
    records = [
        (1, 1, 0, ENTRY, 0),
        (2, 2, 1, ENTRY, 0),
        (3, 3, 2, ENTRY, 0),
        (9, 1, 0, RETURN, 0),
    ]
    assert told(records) == [
        ("ENDED", 3, 2, 0),
        ("ENDED", 2, 1, 1),
        ("RETURNED", 1, 0, 8),
    ]


def test_a_return_of_another_method() -> None:
    """Its entry was lost, and so was the return of the open call."""
    records = [(1, 1, 0, ENTRY, 0), (5, 2, 0, RETURN, 0)]
    assert told(records) == [("ENDED", 1, 0, 0), ("RETURNED", 2, 0, None)]


def test_a_return_whose_call_was_earlier() -> None:
    """It does not end a call, because its depth is meaningless."""
    records = [(1, 1, 0, ENTRY, 0), (2, 9, 0, RETURN, 1), (4, 1, 0, RETURN, 0)]
    assert told(records) == [("RETURNED", 9, 0, None), ("RETURNED", 1, 0, 3)]


def test_after_a_loss_nesting_recovers() -> None:
    records = [
        (1, 1, 0, ENTRY, 0),
        (2, 2, 1, ENTRY, 0),
        (5, 7, 2, LOST, 0),
        (6, 4, 3, ENTRY, 0),
        (7, 4, 3, RETURN, 0),
        (8, 1, 0, RETURN, 0),
    ]
    nesting = CallNesting()
    events = [event for record in records for event in nesting.feed(0, record)]
    assert [e.count for e in events if e.what is CallEventKind.LOST] == [7]
    assert told(records)[1:] == [
        ("RETURNED", 4, 3, 1),
        ("ENDED", 2, 1, 5),
        ("RETURNED", 1, 0, 7),
    ]


def test_another_stack_ends_all() -> None:
    nesting = CallNesting()
    records = [
        (1, 1, 0, STACK, 0),
        (0xEC1, 70, 0, PLACE, 0),
        (0xABC, 0, 0, THREAD, 0),
        (2, 5, 0, ENTRY, 0),
        (3, 2, 0, STACK, 0),
        (0xEC2, 70, 0, PLACE, 0),
        (0xABC, 0, 0, THREAD, 0),
        (4, 6, 0, ENTRY, 0),
    ]
    events = [event for record in records for event in nesting.feed(0, record)]
    assert [(e.what.name, e.method) for e in events] == [
        ("ENTERED", 5),
        ("ENDED", 5),
        ("ENTERED", 6),
    ]
    first, second = events[0].stack, events[2].stack
    assert (first.number, first.tid, first.fiber, first.ec) == (1, 70, 1, 0xEC1)
    assert (second.number, second.tid, second.fiber) == (2, 70, 2)
    assert first.thread == second.thread == 0xABC


@pytest.mark.parametrize("shared", [False, True])
def test_a_kernel_thread_that_serves_another_thread(shared: bool) -> None:
    """Ruby reuses kernel threads. The next thread is not a fiber of the first. M:N
    threads take turns on a kernel thread; their stacks' numbers differ."""
    nesting = CallNesting(shares_natives=shared)
    for number, thread in ((1, 0xABC), (2, 0xDEF)):
        for record in (
            (1, number, 0, STACK, 0),
            (0xEC, 70, 0, PLACE, 0),
            (thread, 0, 0, THREAD, 0),
        ):
            assert not nesting.feed(0, record)
    (stack,) = nesting.stacks
    assert (stack.tid, stack.fiber, stack.number) == (70, 1 + shared, 2)


def test_streams_are_apart() -> None:
    nesting = CallNesting()
    for stream in (0, 1):
        list(nesting.feed(stream, (1, 1, 0, ENTRY, 0)))
    (event,) = nesting.feed(1, (5, 1, 0, RETURN, 0))
    assert (event.duration, len(nesting.stacks[0].open)) == (4, 1)


def texts(data: bytes) -> list[CallRecord]:
    """Cut a text into records as the hook writes them."""
    records = []
    for at in range(0, len(data), 14):
        part = data[at : at + 14]
        flags = len(part) | (16 if at + 14 < len(data) else 0)
        fields = struct.unpack("<QIH", part.ljust(14, b"\0"))
        records.append((*fields, TEXT, flags))
    return records


def test_values_come_with_the_entry_and_the_return() -> None:
    nesting = CallNesting()
    data = bytes(range(40))
    records = [
        (1, 1, 0, ENTRY, 2),
        *texts(data),
        (2, 2, 1, C_ENTRY, 0),
        (3, 2, 1, C_RETURN, 0),
        (4, 1, 0, RETURN, 0),
    ]
    events = [list(nesting.feed(0, record)) for record in records]
    assert [len(each) for each in events] == [0, 0, 0, 1, 1, 1, 1]
    found = [(e.what.name, e.time, e.text) for (e,) in events[3:]]
    assert found == [
        ("ENTERED", 1, data),
        ("ENTERED", 2, b""),
        ("RETURNED", 3, b""),
        ("RETURNED", 4, data),
    ]


def test_values_that_do_not_come() -> None:
    """Only the entry is valid. Another record follows it, or none."""
    nesting = CallNesting()
    assert nesting.feed(0, (1, 1, 0, ENTRY, 2)) == ()
    events = nesting.feed(0, (2, 1, 0, RETURN, 0))
    assert [(e.what.name, e.text) for e in events] == [
        ("ENTERED", b""),
        ("RETURNED", b""),
    ]
    assert nesting.feed(0, (3, 1, 0, ENTRY, 2)) == ()
    assert nesting.feed(0, texts(b"x" * 20)[0]) == ()
    assert [e.what.name for e in nesting.finish(9)] == ["ENTERED", "ENDED"]
    assert nesting.feed(0, texts(b"alone")[0]) == ()


def test_values_without_end() -> None:
    nesting = CallNesting()
    nesting.feed(0, (1, 1, 0, ENTRY, 2))
    fed = [nesting.feed(0, (0, 0, 0, TEXT, 14 + 16)) for _ in range(500)]
    (event,) = [event for events in fed for event in events]
    assert len(event.text) < 2100


def test_garbage_collection() -> None:
    records = [
        (1, 1, 0, ENTRY, 0),
        (2, 9, 1, GC_BEGIN, 0),
        (7, 9, 1, GC_END, 0),
        (8, 1, 0, RETURN, 0),
    ]
    assert told(records) == [("COLLECTED", 9, 1, 5), ("RETURNED", 1, 0, 7)]
    assert told([(7, 9, 3, GC_END, 0)]) == [("COLLECTED", 9, 0, None)]


def test_cpu_time_follows_a_return() -> None:
    nesting = CallNesting(has_cpu=True)
    records = [
        (1, 1, 0, ENTRY, 0),
        (9, 1, 0, RETURN, 0),
        (5_000, 1, 0, CPU, 0),
        (10, 2, 0, ENTRY, 0),
        (12, 2, 0, RETURN, 0),
    ]
    events = [event for record in records for event in nesting.feed(0, record)]
    events += nesting.finish(20)
    returned = [e for e in events if e.what is CallEventKind.RETURNED]
    assert [(e.method, e.cpu_ns) for e in returned] == [(1, 5_000), (2, None)]


def test_anything_at_all() -> None:
    """Memory and time are bounded, whatever a target writes."""
    chance = random.Random(SEED)
    nesting = CallNesting(has_cpu=True)
    for _ in range(times(400_000)):
        record = (
            chance.getrandbits(64),
            chance.getrandbits(chance.choice((2, 32))),
            chance.getrandbits(chance.choice((2, 16))),
            chance.randrange(16),
            chance.getrandbits(1),
        )
        for event in nesting.feed(chance.randrange(4), record):
            assert event.depth <= MAX_DEPTH
            assert event.duration is None or event.duration >= 0
    for stack in nesting.stacks:
        depths = [depth for _, _, depth, *_ in stack.open]
        assert depths == sorted(set(depths))
