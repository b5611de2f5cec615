"""How long children without an agent are asked for it, by a clock that we move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from rbtrace_py.agent.place import NoAgent
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.linux.process import Process
from rbtrace_py.session.targets.confirmation import NotConfirmed
from rbtrace_py.session.targets.joining import SECONDS, Joining
from rbtrace_py.session.targets.targets import Targets


@dataclass(eq=False)
class Child:
    """A process, as far as this is asked for."""

    pid: int
    program: bytes = b"sh"


@dataclass
class World:
    """Targets, of which some have no agent; tried: the pids that were asked."""

    now: float = 0.0
    living: list[Child] = field(default_factory=list)
    fresh: list[Child] = field(default_factory=list)
    problems: dict[int, Exception] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

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

    def take_tried(self) -> list[int]:
        tried, self.tried = self.tried, []
        return tried


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def joining(world: World) -> Joining:
    return Joining(cast(Targets, world), world.join, lambda: world.now)


def counts(joining: Joining) -> tuple[int, int, int]:
    return joining.without, joining.given_up, joining.late


def test_one_with_an_agent_joins(world: World, joining: Joining) -> None:
    world.child(1)
    joining.refresh()
    assert (counts(joining), joining.notes()) == ((0, 0, 1), [])
    joining.refresh()
    assert world.tried == [1]


def test_one_without_is_given_up(world: World, joining: Joining) -> None:
    world.child(1, NoAgent("none"))
    for world.now in (0.0, 1.0, SECONDS - 0.5):
        joining.refresh()
        assert counts(joining) == (1, 0, 0)
        assert joining.may_join(0.0)
    world.now = SECONDS
    joining.refresh()
    assert not joining.may_join(SECONDS)
    assert world.take_tried() == [1, 1, 1, 1]
    joining.refresh()
    assert world.tried == []
    assert counts(joining) == (1, 1, 0)
    assert joining.notes() == ["skipping process 1: none"]


def test_an_agent_that_comes_in_time(world: World, joining: Joining) -> None:
    world.child(1, NoAgent("none"))
    joining.refresh()
    world.problems.clear()
    # However long nobody looked.
    world.now = 9 * SECONDS
    joining.refresh()
    assert (counts(joining), joining.notes()) == ((0, 0, 1), [])


def test_another_program_begins_anew(world: World, joining: Joining) -> None:
    child = world.child(1, NoAgent("no Ruby"))
    joining.refresh()
    world.now = SECONDS
    joining.refresh()
    child.program, world.problems[1] = b"ruby", NoSuchTarget("busy")
    world.take_tried()
    joining.refresh()
    assert (world.take_tried(), joining.may_join(SECONDS)) == ([1], True)
    assert joining.notes() == ["skipping process 1: busy"]
    # Nothing is known of one that is ending.
    child.program = b""
    world.now += SECONDS
    joining.refresh()
    assert counts(joining) == (1, 1, 0)


def test_one_that_is_ours_is_asked_for_as_long_as_it_lives(
    world: World, joining: Joining
) -> None:
    """It is not late, as it waits."""
    ours = world.child(1, NoAgent("not yet"))
    world.refresh()
    joining.ask_again(cast(Process, ours))
    for world.now in (0.0, SECONDS, 9 * SECONDS):
        joining.refresh()
        assert counts(joining) == (1, 0, 0)
    ours.program = b"ruby"
    joining.refresh()
    world.problems.clear()
    joining.refresh()
    assert counts(joining) == (0, 0, 0)


def test_nobody_waits_for_ever(world: World, joining: Joining) -> None:
    """Processes that have no agent may come and come."""
    for pid in range(1, 9):
        world.child(pid, NoAgent("none"))
        joining.refresh()
        assert joining.may_join(0.0) is (world.now < SECONDS)
        world.now += 1


def test_one_that_ended_is_counted(world: World, joining: Joining) -> None:
    first = world.child(1, NoAgent("none"))
    joining.refresh()
    world.living.remove(first)
    # Another one may have its pid.
    world.child(1, NoSuchTarget("has ended"))
    joining.refresh()
    assert counts(joining) == (2, 0, 0)
    assert joining.notes() == ["skipping process 1: none"]
    world.living.clear()
    joining.refresh()
    assert (counts(joining), joining.may_join(0.0)) == ((2, 0, 0), False)


def test_those_there_at_first_are_not_late(world: World, joining: Joining) -> None:
    for pid in (1, 2):
        world.child(pid)
    world.problems[2] = NoAgent("none")
    joining.begin(cast(list[Process], world.refresh()))
    assert counts(joining) == (1, 0, 0)
    assert joining.notes() == ["skipping process 2: none"]
    world.problems.clear()
    joining.refresh()
    assert counts(joining) == (0, 0, 1)


def test_a_no(world: World, joining: Joining) -> None:
    """At first it ends all; of one that comes later only that is left out."""
    world.child(1, NotConfirmed("no"))
    with pytest.raises(NotConfirmed):
        joining.begin(cast(list[Process], world.refresh()))
    world.child(2, NotConfirmed("no"))
    for _ in range(3):
        joining.refresh()
    assert world.tried == [1, 1, 2]
    assert counts(joining) == (2, 2, 0)


def test_reasons_have_bounds(world: World, joining: Joining) -> None:
    for pid in range(1, 1001):
        world.child(pid, NoAgent("none"))
    joining.refresh()
    assert joining.without == 1000
    assert len(joining.notes()) == 50
