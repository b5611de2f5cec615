"""A user's program, for mypy: the types that an editor sees in the library."""

from collections.abc import Iterator

from typing_extensions import assert_type

import rbtrace_py
from rbtrace_py import (
    Distribution,
    Event,
    EventStream,
    Group,
    Measurement,
    MethodCall,
    MethodGroup,
    MethodResult,
    Result,
)


def measure(pid: int) -> None:
    result = rbtrace_py.latency(pid, "checkout", by="sku", seconds=1)
    assert_type(result, Result)
    assert_type(result.groups, tuple[Group, ...])
    assert_type(result.histogram, Distribution)
    assert_type(result.losses, dict[str, int])
    assert_type(
        list(result.histogram.buckets()), list[tuple[int | float, int | float, int]]
    )
    with rbtrace_py.count([pid, pid], "a", "b", filter="id > 1", yes=True) as counting:
        assert_type(counting, Measurement[Result])
        assert_type(counting.run(count=3), Result)
        assert_type(counting.intervals(1.0), Iterator[Result])
    assert_type(rbtrace_py.values(pid, "a", argument="id", seconds=1.0), Result)


def tabulate(pid: int) -> None:
    table = rbtrace_py.methods(pid, "Order#", seconds=1, attach=True)
    assert_type(table, MethodResult)
    assert_type(table.groups, tuple[MethodGroup, ...])
    assert_type([row.own for row in table.groups], list[int | None])
    assert_type(rbtrace_py.methods(pid), Measurement[MethodResult])


def stream(pid: int) -> None:
    with rbtrace_py.trace(pid, "order", count=2) as events:
        assert_type(events, EventStream[Event])
        for event in events:
            assert_type(event, Event)
            assert_type(event.name, str)
    for call in rbtrace_py.calls(pid, "Order#", slow=0.1, subprocesses=True):
        assert_type(call, MethodCall)


def mistakes(pid: int) -> None:
    rbtrace_py.latency(pid, "checkout", bye="sku")  # type: ignore[call-overload]
    rbtrace_py.latency("1", "checkout")  # type: ignore[arg-type]
    rbtrace_py.values(pid, "order")  # type: ignore[call-overload]
    rbtrace_py.trace(pid, "order", slow=1)  # type: ignore[call-arg]


assert_type(rbtrace_py.eval(1, "2").value, str)
