"""However a command ends, the target is as before, and nothing else is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import Forked, Prepare, at_data, at_request, at_step, die, stop
from leftovers import Watched

from commands import has_ruby_probes
from processes import comes_true

pytestmark = pytest.mark.usefixtures("root")

Begin = Callable[..., Forked]
HOOKS, TARGETED, TRACEPOINTS = "hooks", "targeted", "tracepoints"
PROBES, NOTHING = "probes", "nothing"


@dataclass(frozen=True)
class Long:
    """A command that runs until it is stopped.

    PID and FILE in ``words`` are replaced. ``in_target`` names its parts in the target.
    """

    words: str
    in_target: str


LONG = [
    Long("calls PID", HOOKS),
    Long("calls PID --slow 1 --gc", HOOKS),
    Long("calls PID --record FILE", HOOKS),
    Long("calls PID -m Work.refuse Object# --c-calls --yes", HOOKS),
    Long("rbtrace -p PID --firehose", HOOKS),
    Long("latency PID method", HOOKS),
    Long("latency PID -m Work.round --interval 1ms", TARGETED),
    Long("latency PID gc", HOOKS),
    Long("count PID method --by class", HOOKS),
    Long("count PID object --by class", HOOKS),
    Long("count PID raise", HOOKS),
    Long("stacks PID --calls -o FILE", HOOKS),
    Long("trace PID raise", TRACEPOINTS),
    Long("count PID watched:event", PROBES),
    Long("latency PID work", PROBES),
    Long("trace PID watched:*", PROBES),
    Long("values PID watched:event id", PROBES),
    Long("stacks PID -o FILE", NOTHING),
    Long("record PID -o FILE", NOTHING),
]
OF_RUBYS_PROBES = [
    Long("count PID ruby:method__entry", TRACEPOINTS),
    Long("latency PID method --via probes", TRACEPOINTS),
    Long("count PID gc__mark__begin", PROBES),
]
ENDS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}


@pytest.fixture
def begin(folder: Path) -> Iterator[Begin]:
    started: list[Forked] = []

    def start(
        words: str,
        watched: Watched,
        typed: str = "",
        prepare: Prepare = lambda: None,
    ) -> Forked:
        places = {"PID": str(watched.pid), "FILE": str(folder / "file")}
        parts = [places.get(word, word) for word in words.split()]
        started.append(Forked(*parts, folder=folder, typed=typed, prepare=prepare))
        return started[-1]

    yield start
    for command in started:
        command.close()


def is_there(watched: Watched, what: str) -> bool:
    """Return whether it is in the target, so that its removal can be observed."""
    now = watched.snapshot()
    if what == HOOKS:
        return any(file == "agent_hook.so" for _, file in now["hooks"])
    if what == TARGETED:
        return bool(now["ruby"]["tracepoints"]) and not now["hooks"]
    if what == TRACEPOINTS:
        return bool(now["ruby"]["tracepoints"]) and bool(now["hooks"])
    return bool(now["probes"]) or what == NOTHING


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "command", [*LONG, *OF_RUBYS_PROBES], ids=lambda found: found.words
)
def test_nothing_is_left_of_running_commands(
    command: Long, end: str, watched: Watched, begin: Begin
) -> None:
    if command in OF_RUBYS_PROBES and not has_ruby_probes():
        pytest.skip("this Ruby was built without probes")
    before = watched.snapshot()
    tracer = begin(command.words, watched)
    tracer.await_attached()
    assert is_there(watched, command.in_target)
    tracer.send(ENDS[end])
    _, err, code = tracer.result()
    # On a busy machine, many events may be lost.
    assert code in ((0, 5) if end == "interrupted" else (-signal.SIGKILL,)), err
    watched.comes_to(before)


ANSWERING = [
    "eval PID 6*7",
    "eval PID raise(:no.to_s)",
    "backtraces PID",
    "memory PID",
    "heapdump PID FILE",
    "heapdump PID FILE --gc",
    "shapesdump PID FILE",
    "dump PID",
    "layout PID",
    "probes PID",
    "doctor PID",
    "calls PID --duration 10ms",
    "latency PID method --duration 10ms",
    "stacks PID --calls -o FILE --duration 10ms",
    "trace PID raise --count 3",
    "count PID watched:event --count 3",
]


@pytest.mark.parametrize("words", ANSWERING)
def test_nothing_is_left_of_commands_that_end(
    words: str, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()
    _, err, code = begin(words, watched).result()
    assert code in (0, 1, 5), err
    assert "Traceback" not in err
    watched.comes_to(before)


def test_a_copy_is_there_until_it_is_killed(watched: Watched, begin: Begin) -> None:
    before = watched.snapshot()
    out, err, code = begin("fork PID", watched).result()
    assert code == 0, err
    now = watched.snapshot()
    assert now["children"] == [int(out)]
    assert (now["hooks"], now["files"]) == (before["hooks"], before["files"])
    os.kill(int(out), signal.SIGKILL)
    watched.comes_to(before)


@pytest.mark.parametrize(
    "words",
    ["calls PID", "latency PID", "count PID", "stacks PID --calls", "rbtrace -p PID"],
)
def test_nothing_is_left_of_words_that_select_nothing(
    words: str, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()
    out, err, code = begin(f"{words} -m No::Such::", watched).result()
    assert "'No::Such::' does not select a method" in err
    assert (out, code) == ("", 2)
    watched.comes_to(before)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file on a file system that is already full."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted")
    (tmp_path / "filler").write_bytes(b"x" * 4096)
    yield tmp_path / "out"
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "words",
    [
        "calls PID -o FULL",
        "calls PID --record FULL",
        "latency PID method --duration 10ms -o FULL",
        "count PID object --by class --duration 10ms -o FULL",
        "stacks PID --calls --duration 10ms -o FULL",
        "trace PID raise -o FULL",
        "backtraces PID -o FULL",
        "memory PID -o FULL",
        "heapdump PID FULL",
    ],
)
def test_nothing_is_left_if_the_disk_is_full(
    words: str, full_disk: Path, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()
    _, err, code = begin(words.replace("FULL", str(full_disk)), watched).result()
    assert f"cannot write {full_disk}: No space left on device" in " ".join(err.split())
    assert code == 1
    watched.comes_to(before)


def test_nothing_is_left_of_a_console(watched: Watched, begin: Begin) -> None:
    before = watched.snapshot()
    tracer = begin("console PID", watched, typed="x = 6\nputs x * 7\nexit\n")
    out, err, code = tracer.result()
    assert (out.splitlines()[-3:-1], code) == (["42", "=> nil"], 0), err
    watched.comes_to(before)


ASKING = {
    "eval": "eval PID sleep",
    "backtraces": "backtraces PID",
    "memory": "memory PID",
    "heapdump": "heapdump PID FILE",
    "fork": "fork PID",
}
ARMING = (
    "calls PID",
    "latency PID method",
    "calls PID -m Work.",
    "latency PID -m Work.",
)


@pytest.mark.parametrize("command", ASKING)
def test_killed_before_the_answer(command: str, watched: Watched, begin: Begin) -> None:
    before = watched.snapshot()
    tracer = begin(ASKING[command], watched, prepare=at_request(command, die))
    assert tracer.result()[2] == -signal.SIGKILL
    watched.comes_to(before)


@pytest.mark.parametrize("words", ARMING)
def test_killed_while_methods_are_hooked(
    words: str, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()
    tracer = begin(words, watched, prepare=at_request("arm", die))
    assert tracer.result()[2] == -signal.SIGKILL
    watched.comes_to(before)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("command", ["eval", "console"])
def test_nothing_is_left_of_running_code(
    command: str, end: str, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()
    code = "$asked=true;sleep"
    if command == "eval":
        tracer = begin(f"eval PID {code} --timeout 1h", watched)
    else:
        tracer = begin("console PID", watched, typed=f"{code}\n")
    watched.is_asked()
    tracer.send(ENDS[end])
    assert tracer.result()[2] in (130, 1, -signal.SIGKILL)
    watched.comes_to(before)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_of_an_unfinished_dump(
    end: str, watched: Watched, begin: Begin
) -> None:
    before = watched.snapshot()

    def act() -> None:
        os.kill(os.getpid(), ENDS[end])

    tracer = begin("heapdump PID FILE", watched, prepare=at_data(act))
    _, err, code = tracer.result()
    assert code == (130 if end == "interrupted" else -signal.SIGKILL), err
    watched.comes_to(before)


# ---------------------------------------------------------------------- attach


STEPS = ("placed", "seized", "acknowledged", "loaded", "answered")
LEFT_BEHIND = ("hooks", "probes", "signals", "children", "files", "forks")
"""Parts that must be as before, even if the agent is loaded or still being loaded."""


@pytest.fixture
def asleep(unaware: Watched, begin: Begin) -> Watched:
    """A target that had the agent. The agent's code stays until the program ends."""
    attach_and_detach(unaware, begin)
    return unaware


def attach_and_detach(watched: Watched, begin: Begin) -> None:
    for word in ("attach", "detach"):
        _, err, code = begin(f"{word} PID", watched).result()
        assert code == 0, err


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_left_of_an_interrupted_attach(
    step: str, end: str, asleep: Watched, begin: Begin
) -> None:
    before = asleep.snapshot()

    def act() -> None:
        os.kill(os.getpid(), ENDS[end])

    tracer = begin("attach PID", asleep, prepare=at_step(step, act))
    code = tracer.result()[2]
    assert code == (130 if end == "interrupted" else -signal.SIGKILL)
    asleep.comes_to(before, LEFT_BEHIND)
    attach_and_detach(asleep, begin)
    asleep.comes_to(before)


def test_nothing_is_left_of_a_killed_detach(asleep: Watched, begin: Begin) -> None:
    before = asleep.snapshot()
    begin("attach PID", asleep).result()
    tracer = begin("detach PID", asleep, prepare=at_request("stop", die))
    assert tracer.result()[2] == -signal.SIGKILL
    asleep.comes_to(before)


def test_detach_while_a_dump_is_under_way(asleep: Watched, begin: Begin) -> None:
    """The process copy for the dump ends with the agent."""
    before = asleep.snapshot()
    begin("attach PID", asleep).result()
    dumping = begin("heapdump PID FILE", asleep, prepare=at_data(stop))
    dumping.await_stopped()
    assert asleep.snapshot()["children"] != []
    _, err, code = begin("detach PID", asleep).result()
    assert code == 0, err
    asleep.comes_to(before, set(before) - {"forks"})


def test_threads_of_the_kernel_go_too(watched: Watched) -> None:
    """Ruby keeps an ended kernel thread for some seconds to use it again.

    Its own timer may have started since. A thread per command would exceed this.
    """
    assert comes_true(lambda: watched.tasks() <= watched.first_tasks + 1)
