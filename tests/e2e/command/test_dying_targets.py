"""A target that is killed during a command: a clear end, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Forked, Prepare, at_data, at_request, at_step
from leftovers import places

from processes import TARGETS, Target, comes_true, task_states

pytestmark = pytest.mark.usefixtures("root")

Begin = Callable[..., Forked]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Target]]:
    started: list[Target] = []

    def begin(*words: str) -> Target:
        env = {"TRACEPOINT_AGENT_DIR": str(folder / "agent")}
        started.append(
            Target("ruby", str(TARGETS / "probes/watched.rb"), *words, env=env)
        )
        return started[-1]

    yield begin
    for target in started:
        target.close()


@pytest.fixture
def begin(folder: Path) -> Iterator[Begin]:
    started: list[Forked] = []

    def start(
        words: str, pid: int, typed: str = "", prepare: Prepare = lambda: None
    ) -> Forked:
        places = {"PID": str(pid), "FILE": str(folder / "file")}
        parts = [places.get(word, word) for word in words.split()]
        started.append(Forked(*parts, folder=folder, typed=typed, prepare=prepare))
        return started[-1]

    yield start
    for command in started:
        command.close()


def kill(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


def hold(pid: int) -> Callable[[], None]:
    """Stop all of its threads, so that it does not answer."""

    def act() -> None:
        os.kill(pid, signal.SIGSTOP)
        assert comes_true(lambda: task_states(pid) == {"T"})

    return act


def has_ended(command: Forked, pid: int) -> None:
    _, err, code = command.result()
    # heapdump first reports the possible costs of its copy.
    line = " ".join(err.split())
    said = re.sub("^rbtrace-py: a copy of .* until it exits ", "", line)
    assert (said, code) == (
        f"rbtrace-py: process {pid} has ended",
        4,
    )


@pytest.mark.parametrize(
    "words",
    [
        "calls PID -o FILE",
        "calls PID --slow 1 -o FILE",
        "calls PID --record FILE",
        "latency PID method",
        "latency PID method --interval 10ms",
        "latency PID gc",
        "count PID object --by class",
        "stacks PID --calls -o FILE",
        "trace PID raise -o FILE",
        "count PID watched:event",
        "latency PID work",
        "trace PID watched:event -o FILE",
        "stacks PID -o FILE",
        "record PID -o FILE",
    ],
)
def test_commands_print_their_result_if_the_target_dies(
    words: str, start: Callable[..., Target], begin: Begin
) -> None:
    target = start()
    tracer = begin(words, target.pid)
    tracer.await_attached()
    target.process.kill()
    _, err, code = tracer.result()
    # On a busy machine, many events may be lost.
    assert code in (0, 5), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("eval PID sleep", "eval"),
        ("backtraces PID", "backtraces"),
        ("memory PID", "memory"),
        ("heapdump PID FILE", "heapdump"),
        ("fork PID", "fork"),
        ("detach PID", "stop"),
        ("calls PID", "arm"),
        ("latency PID method", "arm"),
        ("stacks PID --calls -o FILE", "arm"),
        ("trace PID raise", "eval"),
    ],
)
def test_before_it_answers(
    words: str, request_: str, start: Callable[..., Target], begin: Begin, folder: Path
) -> None:
    target = start()
    prepare = at_request(request_, kill(target.pid), before=hold(target.pid))
    has_ended(begin(words, target.pid, prepare=prepare), target.pid)
    assert not (folder / "file").exists()


@pytest.mark.parametrize("words", ["eval PID CODE --timeout 1h", "console PID"])
def test_while_code_runs(
    words: str, start: Callable[..., Target], begin: Begin
) -> None:
    target = start()
    code = "$asked=true;sleep"
    asking = begin(words.replace("CODE", code), target.pid, typed=f"{code}\n")
    assert comes_true(lambda: target.step("asked") == "true")
    target.process.kill()
    has_ended(asking, target.pid)


def test_while_a_dump_comes(
    start: Callable[..., Target], begin: Begin, folder: Path
) -> None:
    target = start()
    words = "heapdump PID FILE"
    has_ended(begin(words, target.pid, prepare=at_data(kill(target.pid))), target.pid)
    assert not list(folder.glob("file*"))
    assert not list((folder / "tmp").iterdir())


@pytest.mark.parametrize("step", ["placed", "seized", "text", "acknowledged", "loaded"])
def test_while_the_agent_is_put_there(
    step: str, start: Callable[..., Target], begin: Begin, folder: Path
) -> None:
    target = start("bare")
    prepare = at_step(step, kill(target.pid))
    _, err, code = begin("attach PID", target.pid, prepare=prepare).result()
    *said, last = err.splitlines()
    assert (last, code) == (f"rbtrace-py: process {target.pid} has ended", 4), err
    assert "for about a millisecond" in " ".join(said)
    assert comes_true(lambda: not places())
