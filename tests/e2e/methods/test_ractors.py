"""Ractors: only the main one is traced, exactly and with a note. Tracing harms no
Ractor.

Ruby 3.0 to 3.2 crash if a Ractor starts while collections or new objects are hooked.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import rubies
from commands import Tracer, answer, run
from processes import TIMEOUT
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.targets.targets import Targets

Trace = Callable[..., Tracer]

FRAGILE = ("3.0", "3.1", "3.2")
NAMES = tuple(map(rubies.chroot, ("3.1", "3.3", "3.4")))
STURDY = tuple(map(rubies.chroot, ("3.3", "3.4")))
if rubies.minor(rubies.HERE) >= "3.0":
    NAMES = (rubies.HERE, *NAMES)
if rubies.minor(rubies.HERE) >= "3.3":
    STURDY = (rubies.HERE, *STURDY)
# From 4.0 on, Ruby refuses to fork in another Ractor.
FORKING = [name for name in STURDY if name != rubies.HERE or rubies.minor(name) < "4.0"]
SAID = "1 process has other Ractors: only its main Ractor is traced"

Stack = list[tuple[str, int]]
"""The calls of a thread or fiber, by name and depth, in the order of their ends."""


def is_fragile(name: str) -> bool:
    return rubies.minor(name) in FRAGILE


@pytest.mark.parametrize("name", NAMES)
def test_only_the_main_one(name: str, trace: Trace) -> None:
    """Other Ractors are not traced. A note says so if there are any."""
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace("calls", running.pid, "--json")
        running.target.step("trees")
        alone, end = stacks(tracer)
        assert (len(alone), end["counters"]["other_ractors"]) == (1, 0)
        running.target.step("three ractors")
        tracer = trace("calls", running.pid, "--json")
        running.target.step("in ractors")
        running.target.step("trees")
        found, end = stacks(tracer)
    assert found == [[("Object#have_ractors", 0), *alone[0]]]
    assert (end["lost"], end["counters"]["other_ractors"]) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_counts_while_all_call(name: str, trace: Trace) -> None:
    with rubies.running(name, "methods/calls.rb") as running:
        running.target.step("ractors")
        words = ["-m", "Object#in_thread", "-m", "Plain#leaf", "--by", "method"]
        tracer = trace("latency", running.pid, "method", *words, "--json")
        running.target.step("threads")
        running.target.step("threads")
        document = answer(tracer)
    counts = {group["key"]: group["count"] for group in document["groups"]}
    assert counts == {"Object#in_thread": 110, "Plain#leaf": 20}
    assert document["counters"]["other_ractors"] == 1


@pytest.mark.parametrize("name", STURDY)
def test_objects_of_the_others_are_not_counted(name: str, trace: Trace) -> None:
    """From 4.0 on, Ruby calls hooks on new objects in every Ractor."""
    with rubies.running(name, "methods/calls.rb") as running:
        running.target.step("three ractors")
        tracer = trace("count", running.pid, "object", "--by", "class", "--json")
        running.target.step("many in ractors")
        running.target.step("threads")
        document = answer(tracer)
    counts = {group["key"]: group["count"] for group in document["groups"]}
    assert counts["Plain"] == 10


@pytest.mark.parametrize("name", NAMES)
def test_a_ractor_that_begins_meanwhile(name: str, trace: Trace) -> None:
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Object#trees", "--json")
        running.target.step("ractor")
        assert stacks(tracer)[1]["counters"]["other_ractors"] == 1


@pytest.mark.skipif(rubies.minor(rubies.HERE) < "3.0", reason="no Ractors there")
@pytest.mark.parametrize(
    "words",
    [
        ["calls", "-m", "Tiny#"],
        ["latency", "method", "-m", "Tiny#"],
        ["count", "method", "-m", "Tiny#"],
        ["count", "raise", "--via", "agent"],
        ["trace", "raise", "--via", "agent"],
        ["stacks", "--calls", "-m", "Tiny#"],
    ],
    ids=" ".join,
)
def test_each_command_says_so(words: list[str], trace: Trace) -> None:
    with rubies.running(rubies.HERE, "methods/calls.rb") as running:
        running.target.step("ractor")
        tracer = trace(words[0], running.pid, *words[1:])
        running.target.step("last")
        out, err, code = tracer.finish()
    assert code == 0, err
    assert " ".join((out + err).split()).count(SAID) == 1, out + err


@pytest.mark.parametrize("name", NAMES)
def test_the_main_one_is_exact_while_others_call(name: str, trace: Trace) -> None:
    """Up to Ruby 3.1, all methods are hooked because of Plain#made."""
    trees = {"factorial": [("Plain#factorial", n) for n in (2, 1, 0)]}
    trees["made"] = [("Plain#made", 0)]
    with rubies.running(name, "methods/calls.rb") as running:
        running.target.step("ractors")
        for word, tree in trees.items():
            tracer = trace("calls", running.pid, "-m", word, "--json", "--yes")
            for _ in range(10):
                running.target.step("trees")
            assert stacks(tracer)[0] == [tree * 10]


@pytest.mark.parametrize("name", FORKING)
def test_a_child_that_one_forks(name: str, trace: Trace) -> None:
    """The child ends properly, unless one of Ruby's own locks blocks it. The parent
    stays traced."""
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Tiny#", "--json")
        assert running.target.step("fork in a ractor") in ("done 0", "done locked")
        running.target.step("last")
        assert stacks(tracer)[0] == [[("Tiny#last", 0)]]
        assert running.target.step("fork in a ractor") in ("done 0", "done locked")


def stacks(tracer: Tracer) -> tuple[list[Stack], dict[str, Any]]:
    """Return each thread's and fiber's calls, without Ruby's own methods, and the
    end."""
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
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace(words[0], running.pid, *words[1:], "--json")
        assert running.target.step("brief ractors") == "done 2"
        document = answer(tracer)
        assert document["counters"]["no_inner"] == is_fragile(name)
        # No thread remains that would hook them again or block it.
        assert hooked(running.pid) == "0"
        assert run("count", running.pid, "gc", "-d", "10ms")[2] == 0


@pytest.mark.parametrize("name", NAMES)
def test_calls_go_on_without_collections(name: str, trace: Trace) -> None:
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace("calls", running.pid, "-m", "Tiny#", "--gc")
        assert running.target.step("brief ractors") == "done 2"
        running.target.step("last")
        out, err, code = tracer.finish()
        assert ("Tiny#last" in out, code) == (True, 0), out + err
        said = "hooks on them crash Ruby before 3.3" in " ".join(err.split())
        assert said == is_fragile(name)


@pytest.mark.parametrize("name", NAMES)
def test_hooks_that_were_silenced_are_heard_again(name: str) -> None:
    """Ruby before 4.0 silences them when it collects a Ractor."""
    with rubies.running(name, "methods/calls.rb") as running:
        targets = Targets.from_pids([running.pid])
        with closing(targets), closing(Calls(targets, CallsOptions())) as session:
            session.start()
            running.target.step("brief ractors")
            running.target.step("last")
            until_seen(session, "last", lambda: None)
            running.target.step("collect ractors")
            until_seen(session, "last", lambda: running.target.step("last"))
            list(session.drain())
            silent = sum(end.counters["silent"] for end in session.ends())
            assert silent == (rubies.minor(name) < "4.0")


def until_seen(session: Calls, method: str, again: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not any(told.method.name == method for told in session.events(0.05)):
        assert time.monotonic() < deadline
        again()


@pytest.mark.rubies
def test_ractors_that_are_there() -> None:
    with rubies.running("3.1", "methods/calls.rb") as running:
        running.target.step("ractor")
        _, err, code = run("count", running.pid, "object", "-d", "10ms")
        assert code == 1
        assert "this program has 2 Ractors" in " ".join(err.split())
        _, err, code = run("calls", running.pid, "--gc", "-d", "10ms")
        assert code == 0
        assert "hooks on them crash Ruby before 3.3" in " ".join(err.split())


def hooked(pid: int) -> str:
    """Return the number of enabled TracePoints in the process."""
    count = "ObjectSpace.each_object(TracePoint).count(&:enabled?)"
    return run("eval", pid, count)[0].splitlines()[-1]
