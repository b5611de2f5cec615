"""The tracer is killed at each of its steps: the process restores itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from injecting import (
    Bell,
    Injected,
    bell,
    build_registers,
    injected,
    ring,
    settles,
    state,
)

from processes import is_soak
from rbtrace_py.agent.text import ROOM_SIZE, room_address
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside.injection import ruby_addresses
from rubies import EACH

__all__ = ["bell"]

KILLED = Path(__file__).with_name("killed.py")


def kill_at(step: int, target: Injected, bell: Bell) -> str:
    """Inject code and be killed at a step. Return its name, or ``done`` beyond the
    last."""
    command = [sys.executable, str(KILLED), str(target.pid), bell.code.decode()]
    done = subprocess.run(
        [*command, str(bell.path), str(step)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("ruby", EACH)
@pytest.mark.parametrize("kind", ["ruby", "registers", "sleep", "gc", "select"])
def test_killed_at_each_step(kind: str, ruby: str, bell: Bell) -> None:
    words = [kind]
    if kind == "registers":
        words.append(str(build_registers(bell.path.parent)))
    with injected(*words, ruby=ruby) as target:
        before = state(target.pid)
        names: list[str] = []
        stride = 1 if is_soak() else 8
        step = random.Random(f"{kind}{ruby}").randrange(stride)
        while True:
            name = kill_at(step, target, bell)
            if name == "done":
                break
            names.append(name)
            assert settles(target.pid, before), name
            step += stride
        assert len(names) >= 16 // stride
        ring(target.pid, bell)
        assert state(target.pid) == before
        assert target.end() == "right"


@pytest.mark.parametrize("kind", ["ruby", "sleep"])
def test_killed_while_room_is_made(kind: str, bell: Bell) -> None:
    """It is a new process each time: the first tracer lets it map the room."""
    stride = 1 if is_soak() else 4
    step = random.Random(kind).randrange(stride)
    names: list[str] = []
    while "text" not in names:
        with injected(kind) as target:
            before = state(target.pid)
            names.append(kill_at(step, target, bell))
            assert settles(target.pid, before), names
            ring(target.pid, bell)
            with Process(target.pid) as process:
                address = room_address(ruby_addresses(process).vm)
                found = [m for m in mappings(process) if m.start >> 40 == address >> 40]
            assert [(m.start, m.end) for m in found] == [(address, address + ROOM_SIZE)]
            assert state(target.pid) == before
            assert target.end() == "right"
        step = min(step + stride, 12) if step < 12 else step + 1
    assert len(names) >= 12 // stride
