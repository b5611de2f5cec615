"""Off-CPU time of threads that wait for known things for known times."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import Tracer, by_names, run
from processes import TARGETS, Target, await_state, comes_true, read_line
from ruby_builds import Build, each_build

OFF_CPU = str(TARGETS / "stacks/off_cpu.rb")
TRACE = Callable[..., Tracer]
WAITS = {
    "wait_sleep": "(sleep)",
    "wait_lock": "(lock)",
    "wait_queue": "(queue)",
    "wait_socket": "(socket)",
    "wait_pipe": "(pipe)",
    "wait_child": "(child process)",
}
"""Methods, each in its own thread, and the reasons of their waits."""

pytestmark = pytest.mark.usefixtures("root")


class Took(NamedTuple):
    """Times that a thread reports, in ns. ``ready`` is its wait for a CPU.

    ``stolen`` is the time that a hypervisor took from all CPUs meanwhile: an upper
    bound for the thread.
    """

    wall: int
    cpu: int
    ready: int
    stolen: int


def sampled(
    trace: TRACE, target: Target, step: str, *options: object
) -> tuple[Counter[tuple[str, ...]], dict[str, Took]]:
    """Sample during a step. Return ns by names, and each thread's times."""
    pid = int(target.ready.split()[1])
    tracer = trace("stacks", pid, "--engine", "bpf", "--format", "json", *options)
    took = taken(target, step)
    out, err, code = tracer.finish()
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    assert (document["unit"], document["lost"]) == ("ns", 0)
    return by_names(document), took


def taken(target: Target, step: str) -> dict[str, Took]:
    """Take a step and return each thread's times."""
    took = {}
    answer = target.step(step)
    while answer != "done":
        name, *numbers = answer.split()
        took[name] = Took(*map(int, numbers))
        answer = read_line(target.process.stdout)
    return took


def weight(found: Counter[tuple[str, ...]], method: str, *reasons: str) -> int:
    """Return the weight of a method's stacks whose innermost frame is one of
    ``reasons``."""
    ours = (one for one in found if f"Waits#{method}" in one)
    return sum(found[one] for one in ours if not reasons or one[-1] in reasons)


def fought(found: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Keep the stacks of the work that the threads' clocks measure."""
    return Counter({one: found[one] for one in found if "Waits#burn" in one})


def on_cpu(found: Counter[tuple[str, ...]], method: str) -> int:
    return weight(found, method) - off_cpu(found, method)


def off_cpu(found: Counter[tuple[str, ...]], method: str) -> int:
    return weight(found, method, "(GVL)", "(run queue)", "(lock)")


def assert_waits(target: Target, trace: TRACE, mode: str) -> None:
    found, took = sampled(trace, target, "waits 0.5", "--mode", mode)
    assert took.keys() == WAITS.keys()
    for method, reason in WAITS.items():
        off = took[method].wall - took[method].cpu
        waited = weight(found, method, reason)
        for_a_turn = weight(found, method, "(GVL)", "(run queue)")
        assert waited + for_a_turn == pytest.approx(off, rel=0.05), (method, found)
        assert waited >= 0.9 * off, found


@each_build
def test_waits(build: Build, trace: TRACE) -> None:
    with closing(Target(*build.words(), OFF_CPU)) as target:
        assert_waits(target, trace, "offcpu")


def test_waits_in_wall_time(trace: TRACE) -> None:
    with closing(Target("ruby", OFF_CPU)) as target:
        assert_waits(target, trace, "wall")


@each_build
@pytest.mark.alone  # other programs that want the CPUs disturb the clocks
def test_a_fight_for_the_gvl(build: Build, trace: TRACE) -> None:
    with closing(Target(*build.words(), OFF_CPU)) as target:
        found, took = sampled(trace, target, "fight 0.8", "--mode", "offcpu")
    for method, (wall, cpu, ready, stolen) in took.items():
        assert off_cpu(fought(found), method) <= 1.05 * (wall - cpu), found
        off = wall - cpu - stolen
        assert off_cpu(found, method) >= 0.95 * off, found
        # A thread's wait for a CPU after its wake-up counts as part of the wait that
        # ended.
        waits = weight(found, method, "(GVL)") + ready
        assert waits >= 0.95 * off, found


def test_many_that_wait_for_the_gvl(trace: TRACE) -> None:
    """A thread whose turn passes without the GVL is not the last in the queue."""
    with closing(Target("ruby", OFF_CPU)) as target:
        found, _ = sampled(trace, target, "crowd 1.0", "--mode", "offcpu")
    assert weight(found, "fight_crowd", "(GVL)") >= 5e9
    others = weight(found, "fight_crowd") - weight(
        found, "fight_crowd", "(GVL)", "(run queue)"
    )
    assert others <= 0.02 * weight(found, "fight_crowd"), found


@pytest.mark.alone
def test_the_parts_of_wall_time(trace: TRACE) -> None:
    with closing(Target("ruby", OFF_CPU)) as target:
        found, took = sampled(trace, target, "fight 1.0", "--mode", "wall")
    for method, (wall, cpu, _, stolen) in took.items():
        assert weight(fought(found), method) <= 1.02 * wall, found
        assert weight(found, method) >= 0.98 * wall, found
        assert on_cpu(fought(found), method) <= 1.05 * (cpu + stolen), found
        assert on_cpu(found, method) >= 0.95 * cpu, found


def reported(path: Path, format_: str, *options: object) -> str:
    out, err, code = run("report", path, "--format", format_, *options)
    assert code == 0, err
    return out


@each_build
def test_a_recording_by_default(build: Build, trace: TRACE, tmp_path: Path) -> None:
    """The default is wall time by BPF. Waits longer than a second are sent in parts."""
    path = tmp_path / "waits.rbrec"
    with closing(Target(*build.words(), OFF_CPU)) as target:
        tracer = trace("record", target.pid, "-o", path)
        took = taken(target, "waits 2.3")
        _, err, code = tracer.finish()
    assert code == 0, err
    assert "by BPF" in err
    document = json.loads(reported(path, "json"))
    assert f"{document['counters']['samples']:,} samples in " in err
    found = by_names(document)
    for method, reason in WAITS.items():
        wall = took[method].wall
        waited = weight(found, method, reason, "(GVL)", "(run queue)")
        assert waited == pytest.approx(wall, rel=0.02), (method, found)
    main = sum(found[one] for one in found if one[:1] == ("<main>",))
    lasted = document["ended_ns"] - document["started_ns"]
    assert main == pytest.approx(lasted, rel=0.02)
    assert_same_sums(path, sum(found.values()))


def assert_same_sums(path: Path, whole: int) -> None:
    rows = reported(path, "folded").splitlines()
    assert sum(int(row.rpartition(" ")[2]) for row in rows) == whole
    profiles = json.loads(reported(path, "speedscope", "-o", "-"))["profiles"]
    assert {one["unit"] for one in profiles} == {"nanoseconds"}
    assert sum(sum(one["weights"]) for one in profiles) == whole
    callgrind = reported(path, "callgrind", "-o", "-").splitlines()
    assert f"summary: {whole}" in callgrind
    changed = reported_difference(path)
    assert changed.endswith("the same\n"), changed


def reported_difference(path: Path) -> str:
    out, err, code = run("report", "--diff", path, path)
    assert code == 0, err
    return out


def test_a_recording_that_is_killed(trace: TRACE, tmp_path: Path) -> None:
    """Only the last seconds of an ongoing wait are missing."""
    path = tmp_path / "sleep.rbrec"
    program = "puts 'ready'; $stdout.flush; sleep"
    with closing(Target("ruby", "-e", program)) as target:
        await_state(target.pid, "S")
        began = time.monotonic_ns()
        tracer = trace("record", target.pid, "-o", path)
        for _ in range(4):
            size = path.stat().st_size
            comes_true(lambda size=size: path.stat().st_size > size)
        took = time.monotonic_ns() - began
        tracer.process.kill()
        tracer.process.wait()
    out, err, code = run("report", path, "--format", "json")
    assert (code, "cut off at" in " ".join(err.split())) == (5, True), err
    found = by_names(json.loads(out))
    assert set(found) == {("<main>", "Kernel#sleep", "(sleep)")}
    assert 2.5e9 <= found.total() <= took + 1e9


@pytest.mark.parametrize("verb", ["stacks", "record", "top"])
def test_samples_that_are_counted(verb: str, tmp_path: Path) -> None:
    """Only the memory engine gives a sleeping thread a number of samples."""
    words = ("--mode", "wall", "-n", "3", *(("-o", tmp_path / "a") * (verb != "top")))
    program = "puts 'ready'; $stdout.flush; sleep"
    with closing(Target("ruby", "-e", program)) as target:
        _, err, code = run(verb, target.pid, *words)
    assert code == 0, err
    assert "by BPF" not in err


def test_threads_that_wait_all_the_time(trace: TRACE) -> None:
    """They never get or leave a CPU, so their stacks are read at the start."""
    program = "Thread.new { sleep }; puts 'ready'; $stdout.flush; $stdin.gets"
    with closing(Target("ruby", "-e", program)) as target:
        target.wait_until_it_reads()
        options = ("--mode", "offcpu", "--idle", "--format", "json", "-d", "1")
        out, err, code = trace("stacks", target.pid, *options).result()
    assert code == 0, err
    document = json.loads(out)
    names = [frame["name"] for frame in document["frames"]]
    weights = {
        tuple(names[frame] for frame in row["frames"][-2:]): row["weight"]
        for row in document["stacks"]
    }
    lasted = pytest.approx(document["ended_ns"] - document["started_ns"], rel=0.05)
    assert weights == {
        ("IO#gets", "(pipe)"): lasted,
        ("Kernel#sleep", "(sleep)"): lasted,
    }


def test_on_cpu_time_at_the_end_is_left_out(trace: TRACE) -> None:
    program = "$stdout.sync = true; puts 'ready'; gets; puts 'done'; loop { 1 + 1 }"
    with closing(Target("nice", "-n", "-20", "ruby", "-e", program)) as target:
        tracer = trace("stacks", target.pid, "--mode", "offcpu", "--format", "json")
        assert target.step() == "done"
        out, err, code = tracer.finish()
    assert code == 0, err
    leaves = {names[-1] for names in by_names(json.loads(out))}
    assert leaves <= {"(pipe)", "(run queue)"}


@pytest.mark.parametrize("mode", ["offcpu", "wall"])
def test_each_short_wait_has_a_name(mode: str, trace: TRACE) -> None:
    """A wait may end while the samples of a second are collected. Its frames were sent
    before."""
    words = ("--mode", mode, "--engine", "bpf", "--format", "json", "-d", 4)
    with closing(Target("ruby", TARGETS / "stacks/resting.rb")) as target:
        out, err, code = trace("stacks", target.pid, *words).result()
    assert code == 0, err
    counters = json.loads(out)["counters"]
    assert counters["unresolved"] == 0, err
    assert counters["samples"] > 1000
