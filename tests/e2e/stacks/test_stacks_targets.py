"""Targets of ``stacks`` and ``record``: commands, process trees, and failures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from commands import Tracer, run
from processes import (
    LIB,
    ROOT,
    TARGETS,
    TIMEOUT,
    Target,
    await_state,
    read_line,
)
from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import children
from rbtrace_py.linux.ptrace.pause import paused
from rubies import OTHERS, ruby

STATES = str(TARGETS / "stacks/states.rb")
TURNING = str(TARGETS / "stacks/turning.rb")
FIRST = f"<main> {TURNING};First.stand {TURNING};IO#gets {TURNING}"
SECOND = FIRST.replace("First", "Second")
HALF_A_SECOND = (
    "ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 0.5;"
    " 10_000.times {} while Process.clock_gettime(Process::CLOCK_MONOTONIC) < ends"
)
"""Long enough for names to be read, even on a slow machine."""
CHILD = f"Child.stand {TURNING};IO#gets {TURNING}"
NOBODY = 65534
START = Callable[..., Target]
TRACE = Callable[..., Tracer]


def folded(text: str) -> Counter[str]:
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if line]
    found: Counter[str] = Counter()
    for stack, weight in pairs:
        found[stack] += int(weight)
    return found


def samples(err: str) -> int:
    """Return the number of samples that a command reports."""
    (number,) = re.findall(r"([\d,]+) samples? in ", err)
    return int(number.replace(",", ""))


def until(tracer: Tracer, said: str) -> str:
    """Read a tracer's intervals until one contains the stack. Return that stack."""
    end, last = time.monotonic() + TIMEOUT, ""
    while time.monotonic() < end:
        with suppress(AssertionError):  # silence
            line = read_line(tracer.process.stdout, end - time.monotonic())
            if said in line:
                return line.rpartition(" ")[0]
            last = line or last
            if not line and tracer.process.poll() is not None:
                break
    out, err, code = tracer.finish()
    found = f"{last!r}, exit code {code}\n{out[-4096:]}\n{err}"
    raise AssertionError(f"no {said!r}, but {found}")


@pytest.fixture
def still(start: START) -> START:
    """Start turning.rb, and wait until it and its children are idle."""

    def begin(*arguments: str) -> Target:
        target = start("stacks/turning.rb", *arguments)
        for pid in (target.pid, *children(target.pid)):
            await_state(pid, "S")
        return target

    return begin


def is_turning(out: str) -> bool:
    """Return whether all stacks are turning.rb's, at its beginning or at its idle
    place.

    A word from a test wakes it up, and a busy machine shows it running.
    """
    beginning = rf"\[(running|sleeping)\];<main> {re.escape(TURNING)}(;.*)?"
    return all(re.fullmatch(beginning, stack) for stack in folded(out))


# ------------------------------------------------------------------- commands


def test_a_command_is_sampled_from_its_beginning(root: None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    script = "def work = 20_000_000.times { |n| n * 2 }\nwork\nputs :worked"
    words = ["stacks", "-r", 500, "-o", path, "--", "ruby", "-e", script]
    out, err, code = run(*words)
    assert (out, code) == ("worked\n", 0), err
    stacks = folded(path.read_text())
    mine = sum(weight for stack, weight in stacks.items() if "Object#work" in stack)
    assert mine > 10 / 500 * 1e9


def test_a_command_behind_a_shell(root: None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    script = "def work = 20_000_000.times { |n| n * 2 }\nwork"
    words = ["stacks", "-r", 500, "-o", path, "--", "sh", "-c"]
    _, err, code = run(*words, f"sleep 0.2; exec ruby -e '{script}'")
    assert code == 0, err
    assert "Object#work" in path.read_text()


def test_a_command_behind_a_shell_that_stays(root: None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    script = "def work = 20_000_000.times { |n| n * 2 }\nwork"
    words = ["stacks", "--subprocesses", "-r", 500, "-o", path, "--", "sh", "-c"]
    _, err, code = run(*words, f"ruby -e '{script}'; true")
    assert code == 0, err
    assert "Object#work" in path.read_text()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["true"], (4,)),
        (["sh", "-c", "exit 3"], (4,)),
        (["ruby", "-e", "exit!"], (1, 4)),
        (["/nonexistent"], (2,)),
    ],
)
def test_a_command_without_a_stack(
    root: None, command: list[str], expected: tuple[int, ...]
) -> None:
    _, err, code = run("stacks", "--", *command)
    assert code in expected, err
    assert "Traceback" not in err
    assert (code == 0) or err.startswith("rbtrace-py: "), err


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("exit 3", 3, "rbtrace-py: the program exited with status 3\n"),
        ("Process.kill :KILL, $$", 137, "rbtrace-py: the program was ended by SIGKILL"),
        ("exit", 0, ""),
    ],
)
def test_the_status_of_a_command(
    root: None, tmp_path: Path, last: str, code: int, said: str
) -> None:
    script = f"{HALF_A_SECOND}; {last}"
    path = tmp_path / "out"
    found = run("stacks", "-r", 500, "-o", path, "--", "ruby", "-e", script)
    assert found[2] == code, found[1]
    assert said in found[1]
    assert ("the program" in found[1]) == bool(said)
    assert "Integer#times" in path.read_text()


@pytest.mark.parametrize("ending", [["-d", "0.1"], ["-n", "1"]])
def test_a_command_that_we_end_has_not_failed(root: None, ending: list[str]) -> None:
    script = "at_exit { exit! 3 }; loop {}"
    _, err, code = run("stacks", *ending, "--", "ruby", "-e", script)
    assert (code, "the program" in err) == (0, False), err


def test_a_ctrl_c_is_no_failure(trace: TRACE) -> None:
    """Both processes receive it, and the program may end first."""
    script = "$stdout.sync = true; puts Process.pid; sleep"
    tracer = trace("record", "-o", "/dev/null", "--", "ruby", "-e", script)
    pid = int(read_line(tracer.process.stdout))
    tracer.process.send_signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGINT)
    tracer.process.send_signal(signal.SIGINT)
    tracer.process.send_signal(signal.SIGCONT)
    _, err, code = tracer.result()
    assert (code, "the program" in err) == (0, False), err


def test_a_command_that_never_is_a_ruby(root: None) -> None:
    start = time.monotonic()
    out, err, code = run("stacks", "-d", "0.5", "--", "sleep", "100")
    assert (out, code) == ("", 4), err
    assert "Ruby" in err
    assert time.monotonic() - start < 90, "it waits for the command"


def test_a_command_runs_as_who_called_sudo(root: None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    tmp_path.chmod(0o755)
    env = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY), "SUDO_USER": "nobody"}
    script = f"puts Process.uid, Process.gid; Thread.new {{ sleep }}; {HALF_A_SECOND}"
    words = ["stacks", "-r", 500, "-o", path, "--", "ruby", "-e", script]
    out, err, code = run(*words, env=env)
    assert code == 0, err
    assert out.split() == [str(NOBODY)] * 2
    assert "Integer#times" in path.read_text()


def test_a_command_is_ended_with_the_session(trace: TRACE) -> None:
    script = "$stdout.sync = true; puts Process.pid; sleep"
    tracer = trace("record", "-o", "/dev/null", "--", "ruby", "-e", script)
    pid = int(read_line(tracer.process.stdout))
    _, err, code = tracer.finish()
    assert code == 0, err
    assert not Path(f"/proc/{pid}").exists()


# ------------------------------------------------------------------- families


def test_children_join(still: START, root: None) -> None:
    """A parent and three children, each of them idle."""
    target = still("3")
    out, err, code = run(
        "stacks", target.pid, "--subprocesses", "--mode", "wall", "-n", 40
    )
    stacks = folded(out)
    assert code == 0, err
    assert samples(err) == 40
    parent = sum(w for s, w in stacks.items() if FIRST in s)
    assert parent >= 0.95 * 9 / 99 * 1e9
    assert sum(w for s, w in stacks.items() if CHILD in s) == 3 * parent
    assert sum(stacks.values()) == 4 * parent


def test_children_that_are_made_later_join(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb", "0")
    words = ["--subprocesses", "--mode", "wall", "-i", "0.1", "--threads"]
    tracer = trace("stacks", target.pid, *words)
    pids = [target.step("fork").split()[1] for _ in range(3)]
    for pid in pids:
        until(tracer, f"[pid {pid}];[main, tid {pid}];[sleeping];")
    _, err, code = tracer.finish()
    assert code == 0, err


def test_a_child_that_becomes_a_ruby_joins(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb", "0")
    pid = target.step("shell").split()[1]
    words = ["--subprocesses", "--mode", "wall", "-i", "0.1", "--max-loss", 100]
    tracer = trace("stacks", target.pid, *words, "--threads")
    assert target.step("go") == "done"
    until(tracer, f"[pid {pid}];[main, tid {pid}];[sleeping];{SECOND}")
    _, err, code = tracer.finish()
    assert code == 0, err
    assert f"process {pid} (sh) does not run Ruby" in err


def test_children_on_a_cpu_are_seen_there(start: START, root: None) -> None:
    """This is so even if the child's VM has the parent's ID of the only thread."""
    target = start("stacks/turning.rb", "0")
    pid = target.step("burn").split()[1]
    out, err, code = run("stacks", pid, "-n", 20, "--threads")
    assert code == 0, err
    assert {line.split(";")[0] for line in out.splitlines()} == {f"[main, tid {pid}]"}
    assert all("Child.burn" in line for line in out.splitlines())


def test_children_do_not_join_uncalled(still: START, root: None) -> None:
    target = still("3")
    out, _, code = run("stacks", target.pid, "--mode", "wall", "-n", 5)
    assert (set(folded(out)), code) == ({f"[sleeping];{FIRST}"}, 0)


# ------------------------------------------------------------ what targets do


def test_a_target_that_ends(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb")
    tracer = trace("stacks", target.pid, "--mode", "wall", "-r", 200)
    target.tell("exit")
    out, err, code = tracer.result()
    # The process may end before the names of its newest code are read.
    lines = [line for line in out.splitlines() if "(unresolved)" not in line]
    assert lines
    assert (is_turning("\n".join(lines)), code) == (True, 0), err


def test_a_target_that_becomes_another_ruby(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb")
    words = ["--mode", "wall", "-i", "0.1", "-r", 100, "--max-loss", 100]
    tracer = trace("stacks", target.pid, *words)
    until(tracer, "First.stand")
    assert target.step("again") == "done again"
    # The interval of the exec has both. The next one has that stack again, without its
    # state.
    _, _, stack = until(tracer, "Second.stand").partition(";")  # without its state
    until(tracer, stack)
    out, err, code = tracer.finish()
    assert (is_turning(out), "First.stand" in out, code) == (True, False, 0), err


def test_a_target_that_becomes_another_program(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb")
    words = ["--mode", "wall", "-r", 200, "--max-loss", 0, "--engine", "memory"]
    tracer = trace("stacks", target.pid, *words)
    target.tell("program")
    out, err, code = tracer.result()
    assert is_turning(out)
    assert code == 5, err
    assert f"skipping process {target.pid}" in err
    assert "failed sample" in err


def test_a_target_that_forks_goes_on(start: START, trace: TRACE) -> None:
    target = start("stacks/turning.rb")
    tracer = trace("stacks", target.pid, "--mode", "wall", "-i", "0.1")
    target.step("fork")
    until(tracer, "First.stand")
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "Child" not in out


def test_a_target_that_cannot_be_stopped_for_a_while(
    start: START, trace: TRACE
) -> None:
    """Earlier samples are kept, and later ones are taken."""
    target = start("stacks/turning.rb")
    words = ["--mode", "wall", "--pause", "-i", "0.1", "--max-loss", 0]
    tracer = trace("stacks", target.pid, *words, "--format", "json")
    assert tracer.process.stdout
    documents = map(json.loads, tracer.process.stdout)
    assert any(document["weight"] for document in documents)
    with Process(target.pid) as process, ours_alone(process):
        assert any(document["lost"] for document in documents)
    assert any(document["weight"] for document in documents)
    _, err, code = tracer.finish()
    assert code == 5, err
    assert f"{target.pid} could not be read at times: process {target.pid} is" in err
    assert re.search("failed samples?", " ".join(err.split()))


@contextmanager
def ours_alone(process: Process) -> Iterator[None]:
    """Attach with ptrace at a moment at which no other process does."""
    end = time.monotonic() + 60
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(paused(process, 60))
                break
            except NotPermitted:
                assert time.monotonic() < end
        yield


@pytest.mark.parametrize("more", [[], ["--pause"]])
def test_a_stopped_target_is_read_and_stays_stopped(
    start: START, root: None, more: list[str]
) -> None:
    target = start("stacks/turning.rb")
    await_state(target.pid, "S")
    os.kill(target.pid, signal.SIGSTOP)
    await_state(target.pid, "T")
    out, err, code = run("stacks", target.pid, "--mode", "wall", "-n", 5, *more)
    # After each stop by this test, a thread is awake for a moment, until it stops
    # again.
    stacks = folded(out.replace("[running]", "[sleeping]"))
    assert stacks.pop("[sleeping];(running, not sampled)", 0) < 10_000_000
    assert (set(stacks), code) == ({f"[sleeping];{FIRST}"}, 0), err
    assert samples(err) == 5
    assert stacks.total() >= 0.95 * 4 / 99 * 1e9
    await_state(target.pid, "T")
    os.kill(target.pid, signal.SIGCONT)
    assert target.step("") == "done"


# ----------------------------------------------------------- what cannot be


def test_a_process_that_is_no_ruby(root: None) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            for command in ("stacks", "record"):
                out, err, code = run(command, process.pid, "-d", "1")
                assert (out, code) == ("", 4), err
                assert "Ruby" in err
        finally:
            process.kill()


def test_one_of_several_does_not_run_ruby(start: START, root: None) -> None:
    target = start("stacks/turning.rb")
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            pids = f"{process.pid},{target.pid}"
            _, err, code = run("stacks", pids, "--mode", "wall", "-n", 2)
            assert code == 4, err
            assert str(process.pid) in err
        finally:
            process.kill()


UNPRIVILEGED = """
import importlib, os, pkgutil, sys
import rbtrace_py
for module in pkgutil.walk_packages(rbtrace_py.__path__, "rbtrace_py."):
    if "bpf" not in module.name and "worker" not in module.name:
        importlib.import_module(module.name)
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
from rbtrace_py.cli.main import main
main()
"""


def run_as_nobody(*words: object) -> tuple[str, str, int]:
    """Run ``rbtrace-py`` without rights, after its modules were read with rights."""
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    return done.stdout, done.stderr, done.returncode


def test_a_process_of_somebody_else(start: START, root: None) -> None:
    target = start("stacks/turning.rb")
    for command in ("stacks", "record"):
        out, err, code = run_as_nobody(command, target.pid, "-d", "1")
        assert (out, code) == ("", 3), err
        assert "not allowed" in err
        assert "root" in err
        assert "Traceback" not in err


SCRIPT = """
$stdout.sync = true
class Mine
  def self.stand = $stdin.gets
end
puts "ready"
Mine.stand
"""


def test_a_process_of_ones_own(root: None) -> None:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    target = Target(*command, "ruby", "-e", SCRIPT)
    try:
        target.wait_until_it_reads()
        words = ["--mode", "wall", "-n", 3]
        out, err, code = run_as_nobody("stacks", target.pid, *words)
        stacks = folded(out)
        expected = {"[sleeping];<main> -e;Mine.stand -e;IO#gets -e"}
        assert (set(stacks), code) == (expected, 0), err
        assert samples(err) == 3
        assert stacks.total() >= 0.95 * 2 / 99 * 1e9
    finally:
        target.close()


def test_stacks_are_read_from_memory_without_bpf_rights(root: None) -> None:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with closing(Target(*command, "ruby", "-e", SCRIPT)) as target:
        _, err, code = run_as_nobody("stacks", target.pid, "--engine", "bpf")
        assert code == 3, err
        out, err, code = run_as_nobody(
            "stacks", target.pid, "-d", 1, "--format", "json"
        )
        assert (code, json.loads(out)["engine"]) == (0, "memory"), err
        assert "the BPF engine needs CAP_BPF and CAP_PERFMON" in err


# ---------------------------------------------------------------- namespaces


@pytest.fixture
def enclosed(root: None) -> Iterator[Target]:
    """A Ruby in its own pid and mount namespaces."""
    words = ["unshare", "--pid", "--mount-proc", "--fork", "ruby", STATES, "0"]
    target = Target(*words)
    yield target
    target.close()


def test_a_pid_namespace(enclosed: Target) -> None:
    inner = int(enclosed.ready.split()[1])
    children = Path(f"/proc/{enclosed.pid}/task/{enclosed.pid}/children")
    (pid,) = map(int, children.read_text().split())
    assert inner != pid
    out, err, code = run("stacks", pid, "--mode", "wall", "--threads", "-n", 30)
    assert code == 0, err
    assert samples(err) == 30
    # A sleeping thread may run for a moment.
    stacks = folded(out)
    weights = [n for stack, n in stacks.items() if "(running, not" not in stack]
    assert weights == [pytest.approx(max(weights), abs=10_000_000)] * 3
    assert min(weights) >= 0.95 * 9 / 99 * 1e9 - 10_000_000
    tids = {int(tid) for tid in re.findall(r"tid (\d+)", out)}
    assert tids <= {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}
    assert pid in tids


@pytest.mark.parametrize("name", OTHERS)
def test_another_root(name: str, root: None) -> None:
    target = Target(*ruby(name), f"-I{LIB}", STATES, "1")
    try:
        pid = target.ready.split()[1]
        words = ["--mode", "wall", "--threads", "-n", 40, "--lines"]
        out, err, code = run("stacks", pid, *words)
        assert code == 0, err
        stacks = folded(re.sub(r", tid \d+", "", out))
        lines = [line.strip() for line in Path(STATES).read_text().splitlines()]
        sleeps = lines.index("sleep") + 1
        burns = lines.index("count += 1 while true") + 1
        nap = f"Work.nap {STATES}:{sleeps};Kernel#sleep {STATES}:{sleeps}"
        slept = [w for s, w in stacks.items() if s.endswith(nap)]
        burnt = [w for s, w in stacks.items() if f"Work.burn {STATES}:{burns}" in s]
        assert samples(err) == 40
        # The kernel has not counted the latest run time of a running thread yet.
        assert slept == [pytest.approx(sum(burnt), abs=20_000_000)]
        assert stacks.total() == pytest.approx(4 * slept[0], abs=20_000_000)
        assert sum(burnt) >= 0.95 * 9 / 99 * 1e9
    finally:
        target.close()


# ------------------------------------------------------------------- threads

MAKING = """
$stdout.sync = true
threads = []
puts "ready"
while (line = $stdin.gets)
  verb, name = line.split
  case verb
  when "make"
    threads << Thread.new { sleep }
    threads.last.name = name
  when "end" then threads.pop.kill.join
  when "rename" then threads.last.name = name
  end
  puts "done"
end
"""


def test_threads_that_come_and_go(root: None, trace: TRACE) -> None:
    """A thread may inherit the kernel thread of a thread that ended."""
    target = Target("ruby", "-e", MAKING)
    try:
        words = ["--mode", "wall", "--threads", "-i", "0.1"]
        tracer = trace("stacks", target.pid, *words)
        for number in range(3):
            target.step(f"make late{number}")
            until(tracer, f"[late{number}, tid ")
            target.step("end")
        target.step("make first")
        until(tracer, "[first, tid ")
        target.step("rename second")
        until(tracer, "[second, tid ")
        _, err, code = tracer.finish()
        assert code == 0, err
    finally:
        target.close()
