"""When a non-Ruby process is checked again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from rbtrace_py.linux.process import Process
from rbtrace_py.session.targets.non_ruby import NonRubyProcesses


@dataclass
class Made:
    """A fake process."""

    pid: int
    exe: str = "/bin/sh"

    @property
    def identity(self) -> tuple[int, int]:
        return (self.pid, 0)


def made(pid: int) -> Process:
    return cast(Process, Made(pid))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ever_more_seldom() -> None:
    clock, process = Clock(), made(1)
    others, looks = NonRubyProcesses(clock), []
    while clock.now < 60:
        if others.is_due(process):
            looks.append(clock.now)
            others.add(process)
        clock.now += 1 / 128  # no rounding: the waits are exact
    waits = [then - now for now, then in pairwise(looks)]
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert 5 <= waits[-1] < 5.1
    assert len(looks) < 25


def test_at_once_where_it_runs_another_program() -> None:
    others, process = NonRubyProcesses(Clock()), made(1)
    for may_become in (True, False):
        others.add(process, may_become)
        assert not others.is_due(process)
        process.exe += "x"  # type: ignore[misc]
        assert others.is_due(process)
        assert process in others


def test_never_where_it_is_of_no_use() -> None:
    clock = Clock()
    others, process = NonRubyProcesses(clock), made(1)
    others.add(process, may_become=False)
    clock.now = 1e9
    assert not others.is_due(process)


def test_ended_processes_are_forgotten() -> None:
    others = NonRubyProcesses(Clock())
    for pid in (1, 2):
        others.add(made(pid))
    others.keep([made(2)])
    assert made(1) not in others
    assert made(2) in others
