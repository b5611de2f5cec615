"""The GVL's holders while others wait, by both engines, compared with the threads'
clocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import Tracer, below, by_names, run
from processes import TARGETS, Target, read_line
from ruby_builds import Build, each_build, each_build_with_ractors

HOLDERS = str(TARGETS / "stacks/holders.rb")
TRACE = Callable[..., Tracer]
METHODS = ("hold_ruby", "hold_c", "give_away")

pytestmark = pytest.mark.usefixtures("root")


class Took(NamedTuple):
    """Times that a thread reports, in ns. ``ready`` is its wait for a CPU."""

    cpu: int
    ready: int


def answers(target: Target, step: str) -> dict[str, Took]:
    """Take a step and return each thread's times."""
    found = {}
    answer = target.step(step)
    while answer != "done":
        name, *numbers = answer.split()
        found[name] = Took(*map(int, numbers))
        answer = read_line(target.process.stdout)
    return found


def sampled(
    trace: TRACE, target: Target, step: str, *options: object
) -> tuple[Any, dict[str, Took]]:
    """Sample during a step. Return the report and the threads' times."""
    pid = int(target.ready.split()[1])
    words = ("--mode", "gvl", "-r", 499, "--format", "json", *options)
    tracer = trace("stacks", pid, *words)
    said = answers(target, step)
    out, err, code = tracer.finish()
    assert code == 0, err
    return json.loads(out), said


def held(found: Any) -> dict[str, int]:
    return {name: below(found, f"Holders#{name}") for name in METHODS}


def assert_shares(found: dict[str, int], took: dict[str, Took]) -> None:
    """Check the shares. A thread that yields the GVL wakes another and waits for a CPU
    before it gets the GVL back."""
    expected = {
        name: one.cpu + one.ready * (name != "give_away") for name, one in took.items()
    }
    assert shares(found) == pytest.approx(shares(expected), abs=5), (found, took)


def shares(weights: dict[str, int]) -> dict[str, float]:
    whole = sum(weights.values())
    return {name: 100 * weight / whole for name, weight in weights.items()}


def assert_weight(weight: int, took: dict[str, Took], seconds: float) -> None:
    """Check the weight of three threads: a thread with a CPU held the GVL, and only one
    thread can."""
    cpu = sum(one.cpu for one in took.values())
    assert 0.9 * 2 * cpu <= weight <= 1.05 * 2 * seconds * 1e9, (weight, took)


@each_build
@pytest.mark.alone  # a thread with a CPU holds the GVL longer
def test_shares(build: Build, trace: TRACE) -> None:
    """Two of the three threads, which always want the GVL, wait at any moment."""
    with closing(Target(*build.words(), HOLDERS)) as target:
        found, took = sampled(trace, target, "fight 2", "--engine", "bpf")
    assert_shares(held(found), took)
    assert found["unit"] == "ns"
    # The kernel cannot read pages that are not in memory.
    assert found["lost"] <= 0.01 * found["counters"]["samples"]
    assert_weight(sum(held(found).values()), took, target.took)


@each_build
@pytest.mark.alone  # passes are late if other programs use the CPUs
def test_shares_by_memory(build: Build, trace: TRACE) -> None:
    with closing(Target(*build.words(), HOLDERS)) as target:
        found, took = sampled(trace, target, "fight 2", "--engine", "memory")
    assert_shares(held(found), took)
    assert found["unit"] == "ns"
    # The holder counts once, however many threads wait.
    assert_weight(2 * sum(held(found).values()), took, target.took)


@each_build_with_ractors
def test_each_ractor_has_its_own(build: Build, trace: TRACE) -> None:
    """The main ractor's thread sleeps. Threads of the other ractor wait."""
    with closing(Target(*build.words(), HOLDERS)) as target:
        found, took = sampled(trace, target, "ractor 1", "--engine", "bpf")
    weight = sum(held(found).values())
    # From Ruby 3.3 on, they share a kernel thread and its clock.
    longest = max(one.cpu for one in took.values())
    assert 0.9 * longest <= weight <= 1.05 * target.took * 1e9
    assert weight >= 0.95 * found["weight"], (by_names(found), found["counters"])


@pytest.fixture
def fiddler() -> Target:
    """Start the target with Fiddle, which lets C code sleep while holding the GVL."""
    return Target("ruby", HOLDERS, "fiddle")


def test_a_holder_that_sleeps(fiddler: Target, trace: TRACE) -> None:
    with closing(fiddler):
        found, _ = sampled(trace, fiddler, "sleep 0.5")
    assert found["engine"] == "bpf"
    assert asleep(found) == pytest.approx(2 * 0.5e9, rel=0.05)


@pytest.mark.alone  # their waits begin late if other programs use the CPUs
def test_threads_that_begin_to_wait_while_the_holder_sleeps(
    fiddler: Target, trace: TRACE
) -> None:
    with closing(fiddler):
        found, _ = sampled(trace, fiddler, "late 1")
    assert asleep(found) == pytest.approx(2 * 0.5e9, rel=0.05)


@pytest.mark.alone  # as the test above
def test_threads_that_never_had_the_gvl(fiddler: Target, trace: TRACE) -> None:
    """They have no Ruby stack yet. Only the GVL's queue contains them."""
    with closing(fiddler):
        found, _ = sampled(trace, fiddler, "begin 1")
    assert asleep(found) == pytest.approx(2 * 1e9, rel=0.05)


def test_a_holder_that_slept_before(fiddler: Target, trace: TRACE) -> None:
    with closing(fiddler):
        fiddler.tell("sleep 5")
        pid = int(fiddler.ready.split()[1])
        wait_for_waiters(pid)
        tracer = trace("stacks", pid, "--mode", "gvl", "--format", "json")
        _, ended, _ = read_line(fiddler.process.stdout).split()
        assert read_line(fiddler.process.stdout) == "done"
        out, err, code = tracer.finish()
    assert code == 0, err
    found = json.loads(out)
    since = int(ended) - found["started_ns"]
    assert since > 0
    assert asleep(found) == pytest.approx(2 * since, rel=0.05)


def wait_for_waiters(pid: int) -> None:
    """Wait until two threads of a process wait for the GVL."""
    while True:
        (process,) = json.loads(run("dump", pid, "--json")[0])["processes"]
        waits = [one["waits_for"] or {} for one in process["threads"]]
        kinds = [one.get("kind") for one in waits]
        if kinds.count("gvl") == 2:
            return


def asleep(found: Any) -> int:
    """Return the weight of the holder while it sleeps."""
    names = [frame["name"] for frame in found["frames"]]
    rows = [
        row
        for row in found["stacks"]
        if [names[one] for one in row["frames"][-2:]]
        == ["Fiddle::Function#call", "(sleep)"]
    ]
    assert {row["state"] for row in rows} == {"sleeping"}
    return sum(row["weight"] for row in rows)


@pytest.mark.alone  # as test_shares
def test_a_recording(trace: TRACE, tmp_path: Path) -> None:
    path = tmp_path / "gvl.rbrec"
    with closing(Target("ruby", HOLDERS)) as target:
        pid = int(target.ready.split()[1])
        tracer = trace("record", pid, "--mode", "gvl", "-r", 499, "-o", path)
        took = answers(target, "fight 2")
        _, err, code = tracer.finish()
    assert code == 0, err
    assert "by BPF" in err
    found = json.loads(run("report", path, "--format", "json")[0])
    assert_shares(held(found), took)
    assert_weight(sum(held(found).values()), took, target.took)


def test_a_recording_of_a_holder_that_sleeps(
    fiddler: Target, trace: TRACE, tmp_path: Path
) -> None:
    """It sleeps for seconds while no other sample is transferred, and counts once."""
    path = tmp_path / "gvl.rbrec"
    with closing(fiddler):
        pid = int(fiddler.ready.split()[1])
        tracer = trace("record", pid, "--mode", "gvl", "-o", path)
        answers(fiddler, "sleep 3")
        _, err, code = tracer.finish()
    assert code == 0, err
    found = json.loads(run("report", path, "--format", "json")[0])
    assert asleep(found) == pytest.approx(2 * 3e9, rel=0.05)


def test_no_thread_waits_for_the_gvl(trace: TRACE) -> None:
    """A single thread holds the GVL, and no thread waits. The memory engine counts it
    nevertheless."""
    program = "puts 'ready'; $stdout.flush; loop { 1 + 1 }"
    with closing(Target("ruby", "-e", program)) as target:
        words = ("stacks", target.pid, "--mode", "gvl")
        out, err, code = run(*words, "-d", "0.5")
        counted = run(*words, "-n", "3")[1]
    assert (out, code) == ("", 0)
    assert "no thread was seen to hold the GVL while another waited for it" in err
    assert "by BPF" not in counted
