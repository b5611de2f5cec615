"""Shares and times compared with the program's own clocks: a short version of
``scripts/bench.sh --only accuracy``."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import rubies
from accuracy_cells import Settings, compare, parse_document
from commands import Tracer
from processes import (
    TARGETS,
    Target,
    bring_to,
    busy_on,
    comes_true,
    is_soak,
    run_time,
)
from rubies import EACH, ruby

CLOCKED = TARGETS / "stacks" / "clocked.rb"
RATE = 499
SECONDS = 20 if is_soak() else 3
SLACK = 1.6
"""Errors may be 1.6 times as large as in the table, which is 8 standard errors."""
MODES = ("cpu", "wall")
RUN_TIME = 250_000_000
"""Least run time of a program that is killed, in ns."""
UNCOUNTED = 20_000_000
"""Run time around the first and the last sample, in ns."""

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("root")]


@pytest.mark.parametrize("engine", ["bpf", "memory"])
@pytest.mark.parametrize("program", ["ruby", "sleeps", "runs-2-3", "threads"])
def test_shares_and_totals(
    program: str, engine: str, trace: Callable[..., Tracer]
) -> None:
    """Both modes sample the same run."""
    with closing(Target("ruby", CLOCKED)) as target:
        pid = target.ready.split()[1]
        target.step(f"prepare {program}")
        words = ("stacks", pid, "--engine", engine, "-r", RATE, "--format", "json")
        tracers = {mode: trace(*words, "--mode", mode) for mode in MODES}
        truth = json.loads(target.step(f"go {program} {SECONDS}"))
        found = {mode: tracer.finish() for mode, tracer in tracers.items()}
    for mode, (out, err, code) in found.items():
        assert code == 0, err
        check(truth, json.loads(out), Settings(engine, mode, RATE))


def check(truth: Any, document: Any, settings: Settings) -> None:
    cell = compare(truth, parse_document(document), settings, "alone", "", SECONDS)
    # The memory engine reports a thread as running while it waits for a CPU.
    is_doubtful = (settings.engine, settings.mode) == ("memory", "wall")
    slack = cell.delay_of_run if is_doubtful else 0
    off = [s for s in cell.shares if abs(s.error) > SLACK * s.bound + slack]
    assert not off, (settings, off, cell.delay)
    assert cell.not_sampled <= 2
    assert abs(cell.totals["running"]) <= 2, (settings, cell.totals, cell.delay)
    assert abs(cell.totals.get("waiting", 0)) <= 2, (settings, cell.totals, cell.delay)


@pytest.mark.parametrize("engine", ["bpf", "memory"])
def test_waits_for_a_cpu(engine: str, trace: Callable[..., Tracer]) -> None:
    """A program that shares its CPU with another one runs for half of the time."""
    with closing(Target("ruby", CLOCKED)) as target:
        pid = target.ready.split()[1]
        target.step("prepare ruby")
        cpu = max(os.sched_getaffinity(0))
        bring_to(cpu, int(pid))
        words = ("stacks", pid, "--engine", engine, "-r", RATE, "--format", "json")
        tracer = trace(*words, "--mode", "wall")
        with busy_on(cpu):
            truth = json.loads(target.step(f"go ruby {SECONDS}"))
        out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    [thread] = truth["threads"]
    [index] = [
        index
        for index, one in enumerate(document["threads"])
        if one["tid"] == thread["tid"]
    ]
    [run_queue] = [
        index
        for index, one in enumerate(document["frames"])
        if one["name"] == "(run queue)"
    ]
    rows = [row for row in document["stacks"] if row["thread"] == index]
    states = {row["state"] for row in rows if row["frames"][-1] == run_queue}
    weights = Counter[str]()
    for row in rows:
        weights[row["state"]] += row["weight"]
    assert thread["delay_ns"] > thread["wall_ns"] / 10
    assert states == {"runnable"}
    assert weights["running"] == pytest.approx(thread["run_ns"], rel=0.02)
    delay = pytest.approx(thread["delay_ns"], abs=thread["wall_ns"] / 20)
    assert weights["runnable"] == delay


@pytest.mark.parametrize("mode", MODES)
def test_run_time_of_a_killed_program(mode: str, trace: Callable[..., Tracer]) -> None:
    """Beside a busy process, the program is runnable for twice as long as it runs."""
    code = "$stdout.sync = true; puts :ready; gets; puts :runs; loop {}"
    cpu = max(os.sched_getaffinity(0))
    with closing(Target("ruby", "-e", code)) as target, busy_on(cpu):
        pid = target.pid
        bring_to(cpu, pid)
        target.step("go")
        before = run_time(pid)
        words = ("stacks", pid, "--engine", "memory", "--mode", mode, "-r", RATE)
        tracer = trace(*words, "--format", "json")
        begun = run_time(pid)
        assert comes_true(lambda: run_time(pid) - begun > RUN_TIME)
        ended, now = run_time(pid), time.monotonic_ns()
        target.process.kill()
        target.process.wait()
        since = time.monotonic_ns() - now
        out, err, code_ = tracer.result()
    assert code_ == 0, err
    rows = json.loads(out)["stacks"]
    running = sum(row["weight"] for row in rows if row["state"] == "running")
    assert running >= ended - begun - UNCOUNTED
    assert running <= ended + since - before + UNCOUNTED


@pytest.mark.parametrize("name", EACH)
def test_cpu_time_of_threads_without_samples(
    name: str, trace: Callable[..., Tracer]
) -> None:
    """With a pass every 1000 s, either it is missing, or Ruby kept its kernel
    thread."""
    code = (
        "$stdout.sync = true; puts :ready; gets;"
        " 100.times { Thread.new { 40_000.times { |i| i * i } }.join };"
        " puts :done; gets"
    )
    with closing(Target(*ruby(name), "-e", code)) as target:
        tracer = trace("stacks", target.pid, "--engine", "memory", "-r", 0.001)
        target.step("go")
        out, err, code_ = tracer.finish()
    assert code_ == 0, err
    is_missing = re.search(r"s of CPU time are missing: threads", " ".join(err.split()))
    assert is_missing or "(running, not sampled)" in out, (out, err)
    assert bool(is_missing) == (rubies.minor(name) >= "3.3"), (out, err)


@pytest.mark.parametrize("name", EACH)
def test_a_sleep_that_ends_late(name: str, trace: Callable[..., Tracer]) -> None:
    """After a sleep, a thread waits for the GVL."""
    with closing(Target(*ruby(name), str(TARGETS / "stacks" / "late.rb"))) as target:
        pid = target.ready.split()[1]
        words = ("stacks", pid, "--engine", "memory", "-r", RATE, "--format", "json")
        tracer = trace(*words, "--mode", "wall")
        truth = json.loads(target.step(f"go {SECONDS}"))
        out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    rows = [
        (row["state"], row["weight"])
        for row in document["stacks"]
        if document["threads"][row["thread"]]["name"] == "sleeper"
        and "Late#nap" in {document["frames"][index]["name"] for index in row["frames"]}
    ]
    states = Counter[str]()
    for state, weight in rows:
        states[state] += weight
    bound = 0.06 * (truth["slept_ns"] + truth["late_ns"])
    assert states["waiting"] == pytest.approx(truth["late_ns"], abs=bound), states
    assert states["sleeping"] == pytest.approx(truth["slept_ns"], abs=bound), states
