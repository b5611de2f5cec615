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
from rubies import NAMES

__all__ = ["bell"]

KILLED = Path(__file__).with_name("killed.py")


def kill_at(step: int, target: Injected, bell: Bell) -> str:
    """Put code in and be killed at a step; its name, ``done`` beyond the last."""
    command = [sys.executable, str(KILLED), str(target.pid), bell.code.decode()]
    done = subprocess.run(
        [*command, str(bell.path), str(step)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("ruby", NAMES)
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
        assert len(names) >= 24 // stride
        ring(target.pid, bell)
        assert state(target.pid) == before
        assert target.end() == "right"
