"""An agent's socket that is not ours: what it can have the tracer take is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import MAIN, ROOT, TARGETS, Target

pytestmark = pytest.mark.usefixtures("root")

MOST = 160 << 20
"""Bytes that the command may take; Python with all it loads takes some 60 MiB."""
COMMANDS = {
    "backtraces": ("backtraces",),
    "memory": ("memory",),
    "fork": ("fork",),
    "eval": ("eval", "1"),
    "arm": ("calls", "--duration", "1"),
}
MORE = {"arm": ("latency", "method", "--duration", "1")}


@contextmanager
def hostile(directory: Path, request: str, attack: str) -> Iterator[int]:
    env = {"TRACEPOINT_AGENT_DIR": str(directory), "TRACER": str(ROOT / "tracer")}
    script = str(TARGETS / "inside/hostile_agent.py")
    target = Target(sys.executable, script, request, attack, env=env)
    try:
        yield target.pid
    finally:
        target.close()


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a program from a small one: what a program has had counts from its fork on, with
the memory of the one that forked."""


def measured(pid: int, command: tuple[str, ...], errors: Path) -> tuple[str, int, int]:
    """Return its standard error, its exit code and the most memory that it had."""
    words = [sys.executable, "-c", MAIN, command[0], str(pid), *command[1:]]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
    with errors.open("w") as err:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *words],
            stdout=subprocess.PIPE,
            stderr=err,
            env=env,
            text=True,
            check=True,
        )
    code, kilobytes = map(int, done.stdout.split())
    return errors.read_text(), code, kilobytes << 10


@pytest.mark.slow
def test_exceptions_faster_than_they_are_shown(tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    command = ("trace", "raise", "--via", "agent", "--duration", "1")
    with hostile(sockets, "eval", "records") as pid:
        err, _, memory = measured(pid, command, tmp_path / "errors")
    assert "Traceback" not in err
    assert "has ended" not in err
    assert memory < MOST, f"{memory >> 20} MiB"


def check(request: str, attack: str, command: tuple[str, ...], folder: Path) -> None:
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700)
    with hostile(sockets, request, attack) as pid:
        err, code, memory = measured(pid, command, folder / "errors")
    assert err.startswith("rbtrace-py: malformed answer"), err
    assert code == 1
    assert memory < MOST, f"{memory >> 20} MiB"


@pytest.mark.parametrize(
    ("request_", "attack"),
    [
        *(("backtraces", attack) for attack in ("events", "wide", "whole")),
        *((request, attack) for request in COMMANDS for attack in ("endless", "maps")),
    ],
)
def test_an_answer_without_bound(request_: str, attack: str, tmp_path: Path) -> None:
    check(request_, attack, COMMANDS[request_], tmp_path)


@pytest.mark.parametrize("request_", ["hello", "prove"])
def test_a_greeting_without_bound(request_: str, tmp_path: Path) -> None:
    check(request_, "endless", COMMANDS["memory"], tmp_path)


@pytest.mark.parametrize("attack", ["endless", "maps"])
def test_latency_of_methods(attack: str, tmp_path: Path) -> None:
    check("arm", attack, MORE["arm"], tmp_path)
