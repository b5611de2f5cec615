"""Endings of ``stacks`` and ``record``: the result is written, the target unharmed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from commands import Tracer, run
from processes import MAIN, ROOT, TARGETS, TIMEOUT, Target, comes_true, task_state
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.detect import find_ruby
from rbtrace_py.rubyvm.native_ids import timer_thread
from ruby_builds import Build, running

SOURCE = str(TARGETS / "stacks/states.rb")
START = Callable[..., Target]
TRACE = Callable[..., Tracer]


@pytest.fixture
def busy(start: START, root: None) -> Target:
    return start("stacks/states.rb", "1")


def wait_for_size(path: Path, least: int) -> None:
    end = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < least:
        assert time.monotonic() < end, "nothing was written"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_stacks(
    busy: Target, trace: TRACE, number: int
) -> None:
    tracer = trace("stacks", busy.pid, "--mode", "wall", "-r", 200)
    for _ in range(30):
        assert busy.step("go") == "done"
    out, err, code = tracer.finish(number)
    assert code == 0, err
    assert "Work.nap" in out
    assert re.search(r"no losses|late sampling pass(es)? \(", err)
    assert busy.step("go") == "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_recording(
    busy: Target, trace: TRACE, tmp_path: Path, number: int
) -> None:
    path = tmp_path / "busy.rbrec"
    tracer = trace("record", busy.pid, "-o", path, "-r", 200)
    out, err, code = tracer.finish(number)
    assert (out, code) == ("", 0), err
    assert f"wrote {path}" in err
    assert run("report", path, "--format", "folded")[2] == 0


def test_a_recording_outlives_a_kill(
    busy: Target, trace: TRACE, tmp_path: Path
) -> None:
    path = tmp_path / "busy.rbrec"
    tracer = trace("record", busy.pid, "-o", path, "-r", 500)
    # The first block has the first sample alone.
    for _ in range(2):
        wait_for_size(path, path.stat().st_size + 1)
    tracer.process.kill()
    tracer.process.wait(60)
    out, err, code = run("report", path, "--format", "folded")
    assert (code, "cut off at" in " ".join(err.split())) == (5, True), err
    assert "Work.burn" in out
    assert busy.step("go") == "done"


@pytest.mark.parametrize("more", [[], ["--pause"]])
def test_the_target_outlives_a_kill(
    busy: Target, trace: TRACE, more: list[str]
) -> None:
    """The kill may come at any time, even while the target is stopped."""
    for _ in range(5):
        words = ["--mode", "wall", "-i", "0.1", "-r", 2000, *more]
        tracer = trace("stacks", busy.pid, *words)
        assert tracer.process.stdout
        assert tracer.process.stdout.readline()
        tracer.process.kill()
        tracer.process.wait(60)
        assert busy.step("go") == "done"
    status = Path(f"/proc/{busy.pid}/status").read_text()
    assert "TracerPid:\t0\n" in status


def test_pausing_always_resumes(busy: Target, trace: TRACE) -> None:
    tracer = trace("stacks", busy.pid, "--pause", "-r", 1000)
    for _ in range(30):
        assert busy.step("go") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "Work.burn" in out
    assert "targets were paused for" in err
    status = Path(f"/proc/{busy.pid}/status").read_text()
    assert "TracerPid:\t0\n" in status


@pytest.mark.rubies
@pytest.mark.parametrize(
    "name", ["3.3", "3.4", "4.0.5-shared", "4.1.0dev-shared", "4.0.5-shared-stripped"]
)
def test_the_timer_thread_is_not_paused(name: str, trace: TRACE, root: None) -> None:
    """From Ruby 3.3 on, it ends a time slice after 10 ms in which nothing stops it.

    While it was paused, other threads waited for the GVL for seconds.
    """
    with running(Build(name), "stacks/states.rb", "1") as target:
        with Process(target.pid) as process:
            ruby = find_ruby(process)
            with closing(ruby):
                # It waits all the time, except for some microseconds.
                assert comes_true(lambda: timer_thread(process, ruby.data) is not None)
                timer = timer_thread(process, ruby.data)
        tracer = trace("stacks", target.pid, "--pause", "-r", 200)
        # It is recognized only while it waits, and may run during the first pauses.
        assert target.target.step("go") == "done"
        paused = 0
        while paused < 100:
            paused += task_state(target.pid) == "t"
            assert task_state(target.pid, timer) != "t"
        assert target.target.step("go") == "done"
        _, err, code = tracer.finish()
        assert code == 0, err


def test_a_second_signal_insists(busy: Target, trace: TRACE) -> None:
    tracer = trace("stacks", busy.pid)
    tracer.process.send_signal(signal.SIGINT)
    tracer.process.send_signal(signal.SIGINT)
    _, err, code = tracer.result()
    assert code in (0, 130)
    assert "Traceback" not in err


@pytest.mark.parametrize(("limit", "expected"), [("0", 5), ("100", 0)])
def test_how_much_may_be_lost(
    start: START, trace: TRACE, tmp_path: Path, limit: str, expected: int
) -> None:
    """The target executes another program, whose stacks cannot be read."""
    target = start("stacks/turning.rb")
    path = tmp_path / "lost.rbrec"
    words = ["--max-loss", limit, "-r", 500, "-o", path, "--engine", "memory"]
    tracer = trace("record", target.pid, *words)
    target.tell("program")
    _, err, code = tracer.result()
    assert code == expected, err
    assert "failed sample" in err


def test_a_rate_that_cannot_be_kept_is_said(busy: Target) -> None:
    _, err, code = run("stacks", busy.pid, "-r", "100000", "-d", "0.5")
    assert code == 0
    assert "late sampling pass" in err
    assert "of 100000 sampling passes per second" in err


@pytest.mark.parametrize("words", [["stacks"], ["record", "--format", "folded"]])
def test_nobody_reads_the_stacks(busy: Target, trace: TRACE, words: list[str]) -> None:
    tracer = trace(*words[:1], busy.pid, *words[1:], "-d", "0.3")
    assert tracer.process.stdout
    tracer.process.stdout.close()
    assert tracer.process.stderr
    err = tracer.process.stderr.read()
    assert "Traceback" not in err
    assert tracer.process.wait(60) in (0, 1, 141)


@pytest.mark.parametrize("words", [["record"], ["stacks"], ["record", "--format=json"]])
def test_a_file_that_cannot_be_written(busy: Target, words: list[str]) -> None:
    out, err, code = run(*words, busy.pid, "-d", "0.2", "-o", "/nonexistent/file")
    assert (out, code) == ("", 1), err
    assert "cannot write /nonexistent/file" in " ".join(err.split())


@pytest.mark.parametrize(
    ("command", "name", "begins"),
    [
        ("stacks", "a.svg", b"<svg"),
        ("stacks", "a.json", b'{"$schema":'),
        ("stacks", "a.pprof", b"\x1f\x8b"),
        ("stacks", "a.txt", b"<main>"),
        ("stacks", "a.rbrec", b"\x89RBTREC"),
        ("record", "a.svg", b"<svg"),
        ("record", "a.rbrec", b"\x89RBTREC"),
    ],
)
def test_the_format_follows_the_name(
    busy: Target, tmp_path: Path, command: str, name: str, begins: bytes
) -> None:
    path = tmp_path / name
    words = ("--mode", "wall", "-n", 5, "-o", path)
    out, err, code = run(command, busy.pid, *words)
    assert (out, code) == ("", 0), err
    text = path.read_bytes()
    assert text.startswith(begins) or begins in text.split(b"\n")[0], text[:40]
    is_said = command == "record" and name != "a.rbrec"
    assert ("to keep every sample" in " ".join(err.split())) is is_said
    if name == "a.rbrec":
        drawn = tmp_path / "b.svg"
        assert run("report", path, "-o", drawn)[2] == 0
        assert b"<svg" in drawn.read_bytes()
        _, err, code = run("report", path, "-o", tmp_path / "c.rbrec")
        assert (code, "report cannot write a recording" in err) == (2, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk(busy: Target) -> None:
    for words in (["record"], ["stacks"]):
        _, err, code = run(*words, busy.pid, "-d", "0.3", "-o", "/dev/full")
        assert code == 1, err
        assert "No space left on device" in err
        assert "Traceback" not in err


def test_descriptors_are_given_back(start: START, root: None) -> None:
    """Many threads and targets start and end in one tracer process."""
    from rbtrace_py.session.stacks.sampling import Sampling
    from rbtrace_py.session.targets.targets import Targets

    target = start("stacks/states.rb", "1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        targets = Targets.from_pids([target.pid])
        with Sampling(targets) as sampling:
            sampling.sample(lambda sample: None)
            sampling.refresh()
        targets.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_that_is_closed_early(busy: Target) -> None:
    """``| head`` does not cut the summary of the samples."""
    read, write = os.pipe()
    os.close(read)
    words = ["--mode", "wall", "-n", "3", "--format", "summary"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "stacks", str(busy.pid), *words],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
        )
    finally:
        os.close(write)
    began = r"rbtrace-py: tracing\nrbtrace-py: \d+ samples in "
    assert re.match(began, done.stderr), done.stderr
    assert done.returncode == 0
