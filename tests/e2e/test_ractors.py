"""Ractors: the calls of each are seen, and none is harmed.

Ruby 3.0 to 3.2 crash where a Ractor begins while collections or new objects are hooked.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import rubies
from conftest import TIMEOUT, Tracer, answer, run
from rbtrace_py.session.calls import Calls, CallsOptions
from rbtrace_py.session.targets import Targets

Trace = Callable[..., Tracer]

FRAGILE = "3.1"
NAMES = (FRAGILE, "3.3", "3.4")

Stack = list[tuple[str, int]]
"""The calls of a thread or fiber, by name and depth, in the order of their ends."""


@pytest.mark.parametrize("name", NAMES)
def test_the_calls_of_each(name: str, trace: Trace) -> None:
    """Trees in three Ractors are what they are in the main one.

    Threads in Ractors stop Ruby 3.3 and 3.4 for good, traced or not, and fibers there
    crash now and then.
    """
    with rubies.running(name, "calls.rb") as running:
        running.target.step("three ractors")
        tracer = trace("calls", running.pid, "--json")
        running.target.step("trees")
        alone = stacks(tracer)[0]
        assert len(alone) == 1
        tracer = trace("calls", running.pid, "--json")
        running.target.step("in ractors")
        found, end = stacks(tracer)
    ractor = [
        *((method, depth + 1) for method, depth in alone[0]),
        ("Object#in_ractor", 0),
    ]
    assert sorted(found) == sorted([[("Object#have_ractors", 0)], *[ractor] * 3])
    assert end["lost"] == 0
    assert end["counters"]["late_ractors"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_counts_while_all_call(name: str, trace: Trace) -> None:
    """All write to the same table, at the same time."""
    with rubies.running(name, "calls.rb") as running:
        running.target.step("three ractors")
        words = ["-m", "Object#in_thread", "-m", "Plain#leaf", "--by", "method"]
        tracer = trace("latency", running.pid, "method", *words, "--json")
        running.target.step("many in ractors")
        running.target.step("many in ractors")
        document = answer(tracer)
    counts = {group["key"]: group["count"] for group in document["groups"]}
    assert counts == {"Object#in_thread": 36_000, "Plain#leaf": 12_000}


@pytest.mark.parametrize("name", NAMES)
def test_those_that_begin(name: str, trace: Trace) -> None:
    """From 3.3 on Ruby tells in time; before, it is said that it may be late."""
    with rubies.running(name, "calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Object#in_thread", "--json")
        assert running.target.step("begin ractors") == "done 20"
        assert running.target.step("nested ractors") == "done 6"
        found, end = stacks(tracer)
    tree = [("Object#in_thread", 2), ("Object#in_thread", 1), ("Object#in_thread", 0)]
    seen = Counter(map(tuple, found))
    if end["counters"]["late_ractors"]:
        assert name == FRAGILE
        assert all(stack == tree[-len(stack) :] for stack in found)
    else:
        assert seen == {tuple(tree): 20, tuple(tree[1:]): 3}


@pytest.mark.parametrize("name", NAMES)
def test_the_main_one_is_exact_while_others_call(name: str, trace: Trace) -> None:
    with rubies.running(name, "calls.rb") as running:
        running.target.step("ractors")
        words = ["-m", "factorial", "-m", "made", "--json"]
        tracer = trace("calls", running.pid, *words)
        for _ in range(10):
            running.target.step("trees")
        found, _ = stacks(tracer)
    tree = [("Plain#factorial", n) for n in (2, 1, 0)] + [("Plain#made", 0)]
    assert found == [tree * 10]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_evaluated_in_them(name: str, trace: Trace) -> None:
    with rubies.running(name, "calls.rb") as running:
        running.target.step("three ractors")
        tracer = trace("calls", running.pid, "-m", "Object#trees(self)")
        running.target.step("in ractors")
        out, _, code = tracer.finish()
    assert (out.count("Object#trees(self=(not in other Ractors))"), code) == (3, 0), out


@pytest.mark.parametrize("name", ["3.3", "3.4"])
def test_a_child_that_one_forks(name: str, trace: Trace) -> None:
    """At its end Ruby takes, and frees, all hooks of that Ractor."""
    with rubies.running(name, "calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Tiny#", "--json")
        assert running.target.step("fork in a ractor") == "done 0"
        running.target.step("last")
        assert stacks(tracer)[0] == [[("Tiny#last", 0)]]
        assert running.target.step("fork in a ractor") == "done 0"


def test_time_on_a_cpu_is_of_the_main_one(trace: Trace) -> None:
    with rubies.running("3.4", "calls.rb") as running:
        running.target.step("three ractors")
        tracer = trace("calls", running.pid, "--slowcpu", "1ms", "-m", "Object#")
        running.target.step("in ractors")
        out, err, code = tracer.finish()
    assert (out, code) == ("", 0)
    assert "has 4 Ractors; only the main one is seen" in " ".join(err.split())


def test_they_are_joined_again(trace: Trace) -> None:
    """Each arming finds those that are there, once; the others' places are taken."""
    with rubies.running("3.4", "calls.rb") as running:
        for _ in range(5):
            running.target.step("three ractors")
            tracer = trace("calls", running.pid, "-m", "Object#trees", "--json")
            for what in ("in ractors", "in ractors"):
                running.target.step(what)
            assert stacks(tracer)[0] == [[("Object#trees", 0)] * 2] * 3
            running.target.step("collect ractors")


def stacks(tracer: Tracer) -> tuple[list[Stack], dict[str, Any]]:
    """What was told of each thread and fiber, and the end; Ruby's own methods not."""
    out, err, code = tracer.finish()
    assert code == 0, err
    *events, end = [json.loads(line) for line in out.splitlines()]
    found: dict[int, Stack] = defaultdict(list)
    for event in events:
        if not event["method"].startswith(("Ractor", "Kernel", "Array", "Warning")):
            place = (event["method"], event["depth"])
            found[event["stack"]].append(place)
    return list(found.values()), end


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [["count", "object", "gc"], ["latency", "gc"]])
def test_ractors_begin_while_it_is_hooked(
    name: str, words: list[str], trace: Trace
) -> None:
    with rubies.running(name, "calls.rb") as running:
        tracer = trace(words[0], running.pid, *words[1:], "--json")
        assert running.target.step("brief ractors") == "done 2"
        document = answer(tracer)
        assert document["counters"]["no_inner"] == (1 if name == FRAGILE else 0)
        # Nothing is left that would hook them again, or keep it from being done.
        assert hooked(running.pid) == "=> 0"
        assert run("count", running.pid, "gc", "-d", "10ms")[2] == 0


@pytest.mark.parametrize("name", NAMES)
def test_calls_go_on_without_collections(name: str, trace: Trace) -> None:
    with rubies.running(name, "calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Tiny#", "--gc")
        assert running.target.step("brief ractors") == "done 2"
        running.target.step("last")
        out, err, code = tracer.finish()
        assert ("Tiny#last" in out, code) == (True, 0), out + err
        said = "Ruby before 3.3 crashes" in " ".join(err.split())
        assert said == (name == FRAGILE)


@pytest.mark.parametrize("name", NAMES)
def test_hooks_are_not_silenced(name: str) -> None:
    """Ruby does it where a Ractor is collected, unless that has the same hooks."""
    with rubies.running(name, "calls.rb") as running:
        targets = Targets.from_pids([running.pid])
        with closing(targets), Calls(targets, CallsOptions()) as session:
            session.start()
            running.target.step("brief ractors")
            running.target.step("last")
            until_seen(session, "last", lambda: None)
            running.target.step("collect ractors")
            until_seen(session, "last", lambda: running.target.step("last"))
            list(session.finish())
            assert sum(end.counters["silent"] for end in session.ends()) == 0


def until_seen(session: Calls, method: str, again: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not any(told.method.name == method for told in session.events(0.05)):
        assert time.monotonic() < deadline
        again()


def test_ractors_that_are_there() -> None:
    with rubies.running(FRAGILE, "calls.rb") as running:
        running.target.step("ractor")
        _, err, code = run("count", running.pid, "object", "-d", "10ms")
        assert code == 1
        assert "this program has 2 Ractors" in " ".join(err.split())
        _, err, code = run("calls", running.pid, "--gc", "-d", "10ms")
        assert code == 0
        assert "Ruby before 3.3 crashes" in " ".join(err.split())


def hooked(pid: int) -> str:
    """How many TracePoints are on in the process."""
    count = "ObjectSpace.each_object(TracePoint).count(&:enabled?)"
    return run("eval", pid, count)[0].splitlines()[-1]
