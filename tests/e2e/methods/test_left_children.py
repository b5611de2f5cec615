"""``calls --subprocesses``: children that have no agent, or no agent yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from processes import LIB, TIMEOUT, Target
from rbtrace_py.session.methods.agent_session import CHILD_SECONDS
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.targets.targets import Targets

PROGRAM = f"""
require "tracepoint/agent"
$stdout.sync = true
puts "ready"
gets
ruby = "exec ruby -I{LIB} -rtracepoint/agent -e 'loop {{ sleep }}'"
read, write = IO.pipe
# It holds its own input, which so does not end before it has read a line.
puts spawn("read line; " + ruby, in: read, write => write)
gets
write.puts
gets
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def target(start: Callable[..., Target], tmp_path: Path) -> Target:
    """A target with a child: a shell that becomes a Ruby with an agent."""
    script = tmp_path / "shell.rb"
    script.write_text(PROGRAM)
    return start(str(script))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(target: Target, clock: Clock) -> Iterator[Calls]:
    """A session that has given up the shell."""
    with (
        closing(Targets.from_pids([target.pid], follow=True)) as targets,
        closing(Calls(targets, CallsOptions())) as session,
    ):
        session._clock = clock
        session.start()
        target.step()
        until(session, lambda: session.unseen(1)["without_agent"] == 1)
        clock.now = CHILD_SECONDS
        until(session, lambda: session._given_up == 1)
        yield session


def until(session: Calls, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline
        list(session.events(0.05))
        session.refresh()


def test_one_that_becomes_ruby_joins(target: Target, session: Calls) -> None:
    target.tell()
    until(session, lambda: len(session.pids) == 2)
    assert session.unseen(1) == {"without_agent": 0, "late_processes": 1}


def test_one_that_lives_on_does_not_keep_us(target: Target, session: Calls) -> None:
    target.process.kill()
    until(session, lambda: session.is_over)
    assert session.unseen(1) == {"without_agent": 1, "late_processes": 0}
    list(session.drain())
    (note,) = session.notes
    assert note.endswith("(sh) does not run Ruby")
