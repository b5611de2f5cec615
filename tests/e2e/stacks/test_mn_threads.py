"""Threads that share native threads: each is reported by its own state.

With RUBY_MN_THREADS=1, Ruby 3.3 and later run all threads but the main one this way.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

import rubies
import ruby_builds
from commands import Tracer, below, run
from processes import (
    NOT_SAMPLED,
    TARGETS,
    Target,
    bring_to,
    busy_on,
    comes_true,
    run_time,
)
from rbtrace_py.linux.process import Process
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from ruby_builds import Build

BUILDS = tuple(map(Build, ("3.3", "3.4", "4.0.5-shared", "4.1.0dev-shared")))
RUN_TIME = 500_000_000
"""Least run time of a measured thread in ns."""
SCHEDULER_TICKS = 20_000_000
"""Run time of a running thread that the kernel may not have counted yet, in ns."""
ENVIRONMENT = {"RUBY_MN_THREADS": "1", "RUBY_MAX_CPU": "1"}

Trace = Callable[..., Tracer]

each = pytest.mark.parametrize("build", BUILDS, ids=str)
pytestmark = [pytest.mark.rubies, pytest.mark.usefixtures("root")]


@contextmanager
def running(build: Build, *arguments: str) -> Iterator[rubies.Running]:
    words = [*build.words(), str(TARGETS / "stacks/mn_threads.rb"), *arguments]
    if "agent" in arguments:
        ruby_builds.build_gem(build)
    target = Target(*words, env=ENVIRONMENT)
    try:
        yield rubies.Running(target, ruby_builds.innermost(target.pid))
    finally:
        target.close()


@each
def test_samples(build: Build) -> None:
    """A thread that ran between two readings of the thread list is not a sample."""
    with (
        running(build) as target,
        Process(target.pid) as process,
    ):
        check_samples(target.target, process)


@each
@pytest.mark.parametrize("value", ["0", "1"])
def test_which_threads_share(build: Build, value: str) -> None:
    """With RUBY_MN_THREADS=1, all threads but the main one share native threads."""
    target = Target(
        *build.words(),
        str(TARGETS / "stacks/mn_threads.rb"),
        env={"RUBY_MN_THREADS": value},
    )
    with closing(target):
        running = rubies.Running(target, ruby_builds.innermost(target.pid))
        found = {one.is_main: one.is_moving for one in running.vm().threads()}
    assert found == {True: False, False: value == "1"}


def check_samples(target: Target, process: Process) -> None:
    target.step("a")
    with RubyProcess(process) as ruby:
        for turn in "baba":
            target.step(turn)  # most often on the same native thread
            samples = ruby.samples(SamplingMode.CPU)  # of the main thread perhaps, too
            (sample,) = [one for one in samples if not one.thread.is_main]
            frames = [frame.name for frame in sample.stack.frames]
            assert (sample.thread.name, sample.thread.tid) == (turn, None)
            assert f"Object#burn_{turn}" in frames


@each
def test_samples_in_the_kernel(build: Build) -> None:
    """A native thread's own data names the execution context that it runs."""
    with running(build) as target:
        for turn in "aba":
            target.target.step(turn)
            words = ("stacks", target.pid, "--engine", "bpf", "-n", 50)
            out, err, code = run(*words, "--format", "json")
            assert code == 0, err
            found = json.loads(out)
            # The main thread checks for signals now and then, perhaps between two
            # ticks.
            rest = below(found, NOT_SAMPLED)
            names = [frame["name"] for frame in found["frames"]]
            threads = {
                found["threads"][row["thread"]]["name"]
                for row in found["stacks"]
                if names[row["frames"][-1]] != NOT_SAMPLED
            }
            assert threads == {turn}
            assert below(found, f"Object#burn_{turn}") == found["weight"] - rest
            assert rest <= 0.02 * found["weight"]
            assert found["counters"]["samples"] >= 50


@each
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_run_time_of_a_shared_kernel_thread(
    build: Build, mode: str, trace: Trace
) -> None:
    """Beside a busy process, a kernel thread runs for half of the time."""
    cpu = max(os.sched_getaffinity(0))
    with running(build) as target, busy_on(cpu):
        target.target.step("a")
        bring_to(cpu, target.pid)
        before = run_time(target.pid)
        words = ("stacks", target.pid, "--engine", "memory", "--mode", mode)
        tracer = trace(*words, "--format", "json")
        begun = run_time(target.pid)
        assert comes_true(lambda: run_time(target.pid) - begun > RUN_TIME)
        ended = run_time(target.pid)
        out, err, code = tracer.finish()
        after = run_time(target.pid)
    assert code == 0, err
    found = json.loads(out)
    weights = Counter[str]()
    for row in found["stacks"]:
        weights[row["state"]] += row["weight"]
    least, most = ended - begun - SCHEDULER_TICKS, after - before + SCHEDULER_TICKS
    assert least <= weights["running"] <= most
    if mode == "wall":
        assert weights["runnable"] > RUN_TIME / 2


@each
def test_wall_time_is_read_from_memory(build: Build) -> None:
    """A thread without a kernel thread does not wait in the kernel."""
    with running(build) as target:
        words = ("stacks", target.pid, "--mode", "wall", "-d", "0.5")
        _, chosen, _ = run(*words)
        _, forced, _ = run(*words, "--engine", "bpf")
    assert "stacks are read from memory: threads of process" in chosen
    assert "by BPF" not in chosen
    assert "share kernel threads (M:N), and BPF does not see them wait" in forced
    assert "by BPF" in forced


@each
def test_calls(build: Build, trace: Trace) -> None:
    """Each thread has its own number, and none has another thread's name."""
    with running(build, "agent") as target:
        tracer = trace(
            "calls", target.pid, "--json", "-m", "Object#burn_b", "Object#done"
        )
        for turn in "ab":
            target.target.step(turn)
        out, err, code = tracer.finish()
    assert code == 0, err
    *calls, _ = map(json.loads, out.splitlines())
    found = {call["stack"]: (call["tid"], call["fiber"]) for call in calls}
    assert [call["method"] for call in calls] == ["Object#done"] * 2 + ["Object#burn_b"]
    assert len(set(found.values())) == 2
    assert {call["thread"] for call in calls} == {None}


@each
def test_no_cpu_time_of_calls(build: Build) -> None:
    with running(build, "agent") as target:
        _, err, code = run("calls", target.pid, "--slowcpu", "1", "-d", "1")
    assert code == 1
    assert "share native threads (RUBY_MN_THREADS=1)" in err
