"""Ractors: only the main one's calls are seen, and none is harmed.

Ruby 3.0 to 3.2 crash where a Ractor begins while collections or new objects are hooked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

import rubies
from conftest import TIMEOUT, Tracer, answer, run
from rbtrace_py.session.calls import Calls, CallsOptions
from rbtrace_py.session.targets import Targets

Trace = Callable[..., Tracer]

FRAGILE = "3.1"
NAMES = (FRAGILE, "3.3", "3.4")


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
def test_hooks_that_were_silenced_are_heard_again(name: str) -> None:
    """Ruby silences them where a Ractor is collected."""
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
            assert sum(end.counters["silent"] for end in session.ends()) == 1


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
