"""A process that pretends to be an agent, and the harm that it can do to the tracer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import Tracer, run
from processes import MAIN, ROOT, TARGETS, TIMEOUT, Target, read_line

pytestmark = pytest.mark.usefixtures("root")

MOST = 160 << 20
"""Maximum memory of the command in bytes. Python with its modules takes some 60 MiB."""
COMMANDS = {
    "backtraces": ("backtraces",),
    "memory": ("memory",),
    "fork": ("fork",),
    "eval": ("eval", "1"),
    "arm": ("calls", "--duration", "1"),
}
MORE = {"arm": ("latency", "method", "--duration", "1")}
ROOM = {"full": 1 << 30, "names": 320 << 20}
"""Maximum memory in bytes of a command that requested this many histograms or names."""


@contextmanager
def pretending(
    directory: Path, request: str = "", attack: str = "", lie: str = ""
) -> Iterator[Target]:
    sockets = directory / "sockets"
    sockets.mkdir(mode=0o700)
    env = {"TRACEPOINT_AGENT_DIR": str(sockets), "TRACER": str(ROOT / "tracer")}
    script = str(TARGETS / "inside/hostile_agent.py")
    target = Target(sys.executable, script, request, attack, env={**env, "LIE": lie})
    try:
        yield target
    finally:
        target.close()


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A small program that runs another one. A program's peak memory counts from its
fork, so it includes the memory of the process that forked it."""


def measured(pid: int, command: tuple[str, ...], errors: Path) -> tuple[str, int, int]:
    """Return its standard error, its exit code, and its peak memory."""
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
            timeout=TIMEOUT,
        )
    code, kilobytes = map(int, done.stdout.split())
    return errors.read_text(), code, kilobytes << 10


@pytest.mark.slow
def test_exceptions_faster_than_they_are_shown(tmp_path: Path) -> None:
    command = ("trace", "raise", "--via", "agent", "--duration", "1")
    with pretending(tmp_path, "eval", "records") as target:
        err, _, memory = measured(target.pid, command, tmp_path / "errors")
    assert "Traceback" not in err
    assert "has ended" not in err
    assert memory < MOST, f"{memory >> 20} MiB"


def check(request: str, attack: str, command: tuple[str, ...], folder: Path) -> None:
    with pretending(folder, request, attack) as target:
        err, code, memory = measured(target.pid, command, folder / "errors")
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


@pytest.mark.parametrize(
    ("request_", "attack", "command"),
    [
        ("", "", ("attach",)),
        ("", "", ("backtraces",)),
        ("", "", ("calls", "-d", "0.2")),
        ("", "", ("calls", "-d", "0.2", "-m", "A#red")),
        ("", "", ("calls", "-d", "0.2", "--json")),
        ("", "", ("count", "method", "-d", "0.2")),
        ("", "", ("eval", "1")),
        ("", "", ("eval", "1", "--json")),
        ("", "", ("latency", "method", "-d", "0.2")),
        ("", "", ("memory",)),
        ("arm", "refused", ("calls", "-d", "0.2")),
        ("arm", "refused", ("latency", "method", "-d", "0.2")),
        ("eval", "raised", ("eval", "1")),
        ("eval", "refused", ("eval", "1")),
        ("fork", "refused", ("fork",)),
        ("prove", "compiled", ("calls", "-d", "0.2")),
        ("prove", "no_hook", ("attach",)),
        ("prove", "no_hook", ("calls", "-d", "0.2")),
        ("prove", "no_hook", ("latency", "method", "-d", "0.2")),
        ("prove", "refused", ("memory",)),
    ],
)
def test_no_text_steers_the_terminal(
    request_: str, attack: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    with pretending(tmp_path, request_, attack) as target:
        out, err, _ = run(command[0], target.pid, *command[1:])
    assert "Traceback" not in err
    assert "31m" in (out + err).lower(), out + err
    for mark in ("\x1b", "\x07"):
        assert mark not in out + err


@pytest.mark.parametrize(
    ("lie", "command"),
    [
        ("wide_places", MORE["arm"]),
        ("wide_records", COMMANDS["arm"]),
        ("many_streams", COMMANDS["arm"]),
        ("one_histogram", MORE["arm"]),
        ("full", MORE["arm"]),
    ],
)
def test_memory_that_lies(lie: str, command: tuple[str, ...], tmp_path: Path) -> None:
    most = ROOM.get(lie, MOST)
    with pretending(tmp_path, lie=lie) as target:
        err, code, memory = measured(target.pid, command, tmp_path / "errors")
    assert "Traceback" not in err
    assert "agent" in err
    assert code == 1
    assert memory < most, f"{memory >> 20} MiB"


def test_a_carry_that_never_ends(tmp_path: Path) -> None:
    with pretending(tmp_path, lie="carry") as target:
        *_, code = run("latency", target.pid, "method", "--duration", "0.2")
    assert code == 0


def test_one_name_per_answer(tmp_path: Path) -> None:
    with pretending(tmp_path, "names", "one_name", "many_methods") as target:
        out, err, code = run("count", target.pid, "method", "--duration", "0.2")
    assert (code, "Traceback" in err) == (0, False), out + err


def test_names_that_take_much_memory(tmp_path: Path) -> None:
    with pretending(tmp_path, "names", "wide_names", "many_methods") as target:
        command = ("calls", "--duration", "1")
        err, _, memory = measured(target.pid, command, tmp_path / "errors")
    assert "Traceback" not in err
    assert memory < ROOM["names"], f"{memory >> 20} MiB"


def test_events_without_end(tmp_path: Path) -> None:
    with pretending(tmp_path, "clock", "chatter") as target:
        out, err, code = run("latency", target.pid, "method", "--duration", "0.2")
    assert (code, "Traceback" in err) == (0, False), out + err
    assert "hung up" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("request_", "command"),
    [("arm", ("calls", "--timeout", "1h")), ("names", ("latency", "method"))],
)
def test_a_signal_while_no_answer_comes(
    request_: str, command: tuple[str, ...], number: int, tmp_path: Path
) -> None:
    with pretending(tmp_path, request_, "silent") as target:
        tracer = Tracer(command[0], str(target.pid), *command[1:], waits=False)
        assert read_line(target.process.stdout) == "attack"
        out, err, _ = tracer.finish(number)
    assert "Traceback" not in err
    assert "does not answer" in err or "hung up" in out, out + err
