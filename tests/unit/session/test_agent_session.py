"""Waits for agents, and retries of children, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rbtrace_py.agent.client import AnotherProgram
from rbtrace_py.agent.place import NoAgent
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods.agent_session import (
    CHILD_SECONDS,
    AgentOptions,
    AgentSession,
)
from rbtrace_py.session.targets.confirmation import NotConfirmed
from rbtrace_py.session.targets.targets import Targets


@dataclass(eq=False)
class Child:
    """A fake process."""

    pid: int
    program: bytes = b"sh"


@dataclass
class World:
    """Children that join, some without an agent. ``tried`` lists the attempts.

    It is also the session's targets.
    """

    command: None = None
    follow: bool = True
    ours_has_ended: bool = True
    now: float = 0.0
    living: list[Child] = field(default_factory=list)
    fresh: list[Child] = field(default_factory=list)
    parents: list[Child] = field(default_factory=list)
    problems: dict[int, Exception] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def start_with_agent(self, seconds: float) -> None: ...

    def chosen(self) -> list[Child]:
        return [parent for parent in self.parents if parent in self.living]

    def has_joined(self, child: Child) -> bool:
        return child not in self.parents

    def is_ours(self, child: Child) -> bool:
        return False

    def follows(self, child: Child) -> bool:
        return self.follow

    def untracked_children(self) -> set[int]:
        return set()

    def alive(self) -> list[Child]:
        return list(self.living)

    def refresh(self) -> list[Child]:
        found, self.fresh = self.fresh, []
        self.living += found
        return found

    def join(self, process: Process) -> None:
        self.tried.append(process.pid)
        if process.pid in self.problems:
            raise self.problems[process.pid]

    def child(self, pid: int, problem: Exception | None = None) -> Child:
        child = Child(pid)
        self.fresh.append(child)
        if problem is not None:
            self.problems[pid] = problem
        return child

    def parent(self, pid: int, problem: Exception | None = None) -> Child:
        """Add a process that the user selected."""
        parent = self.child(pid, problem)
        self.parents.append(parent)
        self.refresh()
        return parent

    def take_tried(self) -> list[int]:
        tried, self.tried = self.tried, []
        return tried


@pytest.fixture
def world() -> World:
    return World()


class Session(AgentSession[None]):
    """A session for a world's children."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        targets, settings = cast(Targets, world), AgentOptions(**options)
        super().__init__(targets, settings, clock=lambda: world.now)

    def _join(self, process: Process) -> None:
        self.world.join(process)
        self._add(process, None, held=True)

    def execute(self, process: Process) -> None:
        """End the agent of a traced process, as an exec does."""
        self._live[process] = None
        self._release(process, AnotherProgram("executed"))

    def close(self) -> None: ...

    def skipped(self) -> list[str]:
        """Return the notes on processes that are not traced."""
        self.notes.clear()
        self._note_untraced()
        return list(self.notes)

    @property
    def counts(self) -> tuple[int, int, int]:
        found = self.unseen(1)
        return found["without_agent"], self._given_up, found["late_processes"]

    def may_join(self, since: float) -> bool:
        """Return whether the session waits for children; ``since``: the last end."""
        self._live.clear()
        self._last_end = since
        return not self.is_over


@pytest.fixture
def session(world: World) -> Session:
    return Session(world)


def test_one_with_an_agent_joins(world: World, session: Session) -> None:
    world.child(1)
    session.refresh()
    assert (session.counts, session.skipped()) == ((0, 0, 1), [])
    session.refresh()
    assert world.tried == [1]


def test_waiting_for_a_child_without_an_agent_ends(
    world: World, session: Session
) -> None:
    world.child(1, NoAgent("none"))
    for world.now in (0.0, 1.0, CHILD_SECONDS - 0.5):
        session.refresh()
        assert session.counts == (1, 0, 0)
        assert session.may_join(0.0)
    world.now = CHILD_SECONDS
    session.refresh()
    assert not session.may_join(CHILD_SECONDS)
    assert world.take_tried() == [1, 1, 1, 1]
    session.refresh()
    assert world.tried == []
    assert session.counts == (1, 1, 0)
    assert session.skipped() == ["skipping process 1: none"]


def test_an_agent_that_comes_in_time(world: World, session: Session) -> None:
    world.child(1, NoAgent("none"))
    session.refresh()
    world.problems.clear()
    # The last attempt is made, however late it is.
    world.now = 9 * CHILD_SECONDS
    session.refresh()
    assert (session.counts, session.skipped()) == ((0, 0, 1), [])


def test_another_program_begins_anew(world: World, session: Session) -> None:
    child = world.child(1, NoAgent("no Ruby"))
    session.refresh()
    world.now = CHILD_SECONDS
    session.refresh()
    child.program, world.problems[1] = b"ruby", NoSuchTarget("busy")
    world.take_tried()
    session.refresh()
    assert (world.take_tried(), session.may_join(CHILD_SECONDS)) == ([1], True)
    assert session.skipped() == ["skipping process 1: busy"]
    # The program of a process that is exiting is unknown.
    child.program = b""
    world.now += CHILD_SECONDS
    session.refresh()
    assert session.counts == (1, 1, 0)


def test_a_program_that_we_started_is_polled_until_it_ends(
    world: World, session: Session
) -> None:
    """It does not count as late, because it waits to be armed."""
    ours = world.child(1, NoAgent("not yet"))
    world.refresh()
    session.execute(cast(Process, ours))
    for world.now in (0.0, CHILD_SECONDS, 9 * CHILD_SECONDS):
        session.refresh()
        assert session.counts == (1, 0, 0)
    ours.program = b"ruby"
    session.refresh()
    world.problems.clear()
    session.refresh()
    assert session.counts == (0, 0, 0)


def test_waiting_for_children_without_agents_ends(
    world: World, session: Session
) -> None:
    """Processes without an agent may come and go."""
    for pid in range(1, 9):
        world.child(pid, NoAgent("none"))
        session.refresh()
        assert session.may_join(0.0) is (world.now < CHILD_SECONDS)
        world.now += 1


def test_one_that_ended_is_counted(world: World, session: Session) -> None:
    first = world.child(1, NoAgent("none"))
    session.refresh()
    world.living.remove(first)
    # Another process may have its PID.
    world.child(1, NoSuchTarget("has ended"))
    session.refresh()
    assert session.counts == (2, 0, 0)
    assert session.skipped() == ["skipping process 1: none"]
    world.living.clear()
    session.refresh()
    assert (session.counts, session.may_join(0.0)) == ((2, 0, 0), False)


def test_processes_present_at_the_start_are_not_late(
    world: World, session: Session
) -> None:
    for pid in (1, 2):
        world.child(pid)
    world.problems[2] = NoAgent("none")
    world.refresh()
    session.start()
    assert session.counts == (1, 0, 0)
    assert session.skipped() == ["skipping process 2: none"]
    world.problems.clear()
    session.refresh()
    assert session.counts == (0, 0, 1)


def test_a_no(world: World, session: Session) -> None:
    """A refusal at the start ends the session; a later one leaves out the child."""
    world.child(1, NotConfirmed("no"))
    world.refresh()
    with pytest.raises(NotConfirmed):
        session.start()
    world.child(2, NotConfirmed("no"))
    for _ in range(3):
        session.refresh()
    assert world.tried == [1, 1, 2]
    assert session.counts == (2, 2, 0)


def test_reasons_have_bounds(world: World, session: Session) -> None:
    for pid in range(1, 1001):
        world.child(pid, NoAgent("none"))
    session.refresh()
    assert session.counts[0] == 1000
    assert len(session.skipped()) == 50


def test_an_agent_is_not_waited_for_without_wait(world: World) -> None:
    world.follow = False
    world.parent(1, NoAgent("none"))
    world.parent(2)
    session = Session(world, wait_seconds=9.0)
    with pytest.raises(NoAgent, match="none"):
        session.start()
    assert world.tried == [1]


def test_processes_are_traced_while_another_is_waited_for(world: World) -> None:
    """A child that appears meanwhile is not late."""
    world.follow = False
    world.parent(1, NoAgent("none"))
    world.parent(2)
    session = Session(world, wait=True)
    seen: list[list[int]] = []

    def on_wait(seconds: float) -> None:
        seen.append(session.pids)
        world.problems.clear()
        world.child(3)

    session.on_wait = on_wait
    session.start()
    assert (seen, session.pids) == ([[2]], [2, 1, 3])
    assert session.counts == (0, 0, 0)


@pytest.mark.parametrize("follow", [False, True])
def test_a_wait_has_an_end(follow: bool, world: World) -> None:
    """A parent is then left out if its child has an agent."""
    world.follow = follow
    world.parent(1, NoAgent("none"))
    world.child(2)
    world.refresh()
    session = Session(world, wait=True, wait_seconds=0.05)
    if follow:
        session.start()
        assert (session.pids, session.counts) == ([2], (1, 0, 0))
        assert session.notes == ["skipping process 1: none"]
        return
    with pytest.raises(NoAgent, match="none"):
        session.start()


def test_a_wait_that_is_stopped(world: World) -> None:
    world.parent(1, NoAgent("none"))
    session = Session(world, wait=True)
    stops = iter((False, True))
    session.stop = lambda: next(stops)
    session.start()
    assert (world.tried, session.pids, session.notes) == ([1], [], [])


def test_no_process_outlives_the_wait(world: World) -> None:
    parent = world.parent(1, NoAgent("none"))
    session = Session(world, wait=True)
    session.on_wait = lambda seconds: world.living.remove(parent)
    with pytest.raises(NoSuchTarget, match="exited before its agent answered"):
        session.start()


def test_a_parent_and_its_children_have_no_agent(world: World) -> None:
    world.parent(1, NoAgent("none in 1"))
    world.child(2, NoAgent("none in 2"))
    world.refresh()
    with pytest.raises(NoAgent, match="none in 1"):
        Session(world).start()
    assert world.tried == [1, 1, 2]


def test_an_exec_that_is_not_followed(world: World) -> None:
    """The agent's connection counts as lost; an exit is normal."""
    world.follow = False
    session = Session(world)
    for number, error in enumerate((AnotherProgram("executed"), NoSuchTarget("gone"))):
        session._live[cast(Process, Child(number))] = None
        assert not session._release(next(iter(session._live)), error)
    assert session.hung_up == 1


def test_a_program_that_exits_once_it_is_traced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start does not drop it from the targets, as its recording names it."""
    world.parent(1)
    session = Session(world)
    traced: list[list[int]] = []

    def alive() -> list[Child]:
        traced.append(session.pids)
        return list(world.living)

    monkeypatch.setattr(world, "alive", alive)
    session.start()
    assert (traced, session.pids) == ([[]], [1])
