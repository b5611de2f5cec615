"""``trace raise``: children, parents without an agent, and programs executed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from commands import Tracer, run
from processes import LIB, TIMEOUT, Target
from rbtrace_py.model.events import RaiseEvent
from rbtrace_py.session.methods.exceptions import ExceptionOptions, Exceptions
from rbtrace_py.session.targets.targets import Targets

Start = Callable[..., Target]

# The first argument is "bare" for a parent without an agent, and the second is a FIFO.
# The child, a shell, becomes a Ruby with an agent once it reads a line from the FIFO.
PROGRAM = f"""
kind, fifo = ARGV
require "tracepoint/agent" unless kind == "bare"
$stdout.sync = true
puts "ready"
$stdin.gets
code = "loop {{ raise %q(child) rescue sleep 0.01 }}"
ruby = "ruby -I{LIB} -rtracepoint/agent -e '#{{code}}'"
puts spawn("read line <#{{fifo}}; exec #{{ruby}}")
$stdin.gets
"""


class Family:
    """A parent and its child, which has an agent after ``load``."""

    def __init__(self, start: Start, folder: Path, kind: str) -> None:
        script, self._fifo = folder / "family.rb", folder / "fifo"
        script.write_text(PROGRAM)
        os.mkfifo(self._fifo)
        self.parent = start(str(script), kind, str(self._fifo))
        self.child = int(self.parent.step())

    def load(self) -> None:
        self._fifo.write_text("line\n")

    def close(self) -> None:
        os.kill(self.child, signal.SIGKILL)


@pytest.fixture
def family(start: Start, tmp_path: Path) -> Iterator[Family]:
    with closing(Family(start, tmp_path, "loaded")) as found:
        yield found


@pytest.fixture
def bare_family(start: Start, tmp_path: Path) -> Iterator[Family]:
    """A parent without an agent, and its child."""
    with closing(Family(start, tmp_path, "bare")) as found:
        found.load()
        deadline = time.monotonic() + TIMEOUT
        while run("eval", found.child, "1")[2]:
            assert time.monotonic() < deadline
        yield found


@contextmanager
def tracing(pid: int, follow: bool = True) -> Iterator[Exceptions]:
    targets = Targets.from_pids([pid], follow)
    with closing(targets), Exceptions(targets, ExceptionOptions()) as session:
        # This clock never advances, so the session waits for each child forever.
        session._clock = lambda: 0.0
        yield session


def until(
    session: Exceptions, is_so: Callable[[list[RaiseEvent]], bool]
) -> list[RaiseEvent]:
    """Return the next events, up to the first that meets a condition on all of them."""
    events: list[RaiseEvent] = []
    deadline = time.monotonic() + TIMEOUT
    while not is_so(events):
        assert time.monotonic() < deadline
        events += session.events(0.05)
        session.refresh()
    return events


def thirty(session: Exceptions, target: Target) -> list[RaiseEvent]:
    """Let the target raise, and return its exceptions before it can exec."""
    target.step("raise")
    return until(session, lambda events: len(events) == 30)


@pytest.mark.parametrize("command", ["count", "trace"])
def test_a_parent_without_an_agent_is_left_out(
    command: str, bare_family: Family, trace: Callable[..., Tracer]
) -> None:
    """Its child has an agent and is traced."""
    pid = bare_family.parent.pid
    words = ("raise", "--via", "agent", "--subprocesses", "--json", "-n", 3)
    out, err, code = trace(command, pid, *words).result()
    assert code == 0, err
    assert f"skipping process {pid}: no agent in process" in " ".join(err.split())
    end = json.loads(out.splitlines()[-1])
    assert end["count"] >= 3
    assert end["counters"]["without_agent"] == 1
    assert end["counters"]["late_processes"] == 0


def test_a_parent_without_an_agent_alone(bare_family: Family) -> None:
    """Without --subprocesses, its children are not traced instead."""
    words = ("trace", bare_family.parent.pid, "raise", "--via", "agent")
    _, err, code = run(*words)
    assert (code, "no agent in process" in " ".join(err.split())) == (4, True), err


def test_a_child_that_outlives_its_parent(family: Family, root: None) -> None:
    """The session continues as long as the child may load its agent soon."""
    with tracing(family.parent.pid) as session:
        assert session.unseen(1) == {"without_agent": 1, "late_processes": 0}
        family.parent.process.kill()
        until(session, lambda _: family.parent.pid not in session.targets.processes)
        assert not list(session.events(0.5))
        assert not session.is_over
        family.load()
        events = until(session, bool)
        assert session.pids == [family.child]
        assert {(e.pid, e.values[1]) for e in events} == {(family.child, "child")}
        assert session.unseen(1) == {"without_agent": 0, "late_processes": 1}


def test_a_child_that_loads_nothing_is_not_waited_for(
    family: Family, root: None
) -> None:
    with tracing(family.parent.pid) as session:
        until(session, lambda _: session.unseen(1)["without_agent"] == 1)
        family.parent.process.kill()
        session._clock = time.monotonic
        until(session, lambda _: session.is_over)
        assert session.unseen(1) == {"without_agent": 1, "late_processes": 0}


def test_a_followed_program_that_executes_another(start: Start, root: None) -> None:
    """Exceptions before and after the exec are reported, and none counts as lost."""
    target = start("methods/methods.rb")
    with tracing(target.pid) as session:
        events = thirty(session, target)
        assert target.step("exec") == "ready"
        until(session, lambda _: "did not wait" in " ".join(session.notes))
        target.step("raise")
        events += session.drain()
        counters = session.result_counters()
    assert [event.values[0] for event in events] == ["Work::Refused"] * 60
    assert (counters["lost"], counters["hung_up"]) == (0, 0)


def test_a_program_alone_that_executes_another(start: Start, root: None) -> None:
    """Later exceptions are missing, which a counter reports."""
    target = start("methods/methods.rb")
    with tracing(target.pid, follow=False) as session:
        thirty(session, target)
        assert target.step("exec") == "ready"
        assert until(session, lambda _: session.is_over) == []
        assert session.result_counters()["hung_up"] == 1


def test_children_that_are_not_followed(family: Family, root: None) -> None:
    """The exceptions may be in the children."""
    with tracing(family.parent.pid, follow=False) as session:
        assert not list(session.drain())
        assert session.result_counters()["not_followed"] == 1
