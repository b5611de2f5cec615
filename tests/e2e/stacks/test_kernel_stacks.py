"""Stacks that the kernel walks, of programs that use CPU in known ways."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import Tracer, below, by_names, run
from processes import TARGETS, Target, comes_true, margin, read_line, run_time
from rbtrace_py.model.stacks import Sample
from rbtrace_py.recording.sample_recording import Recording
from rubies import HERE
from ruby_builds import Build, each_build

RATE = 499
WALKED = str(TARGETS / "stacks/walked.rb")
DESCENDING = str(TARGETS / "stacks/descending.rb")
STARTERS = (
    Build(HERE),
    pytest.param(Build("4.0.5-shared"), marks=pytest.mark.rubies),
)
MOST_FRAMES = 512
TRACE = Callable[..., Tracer]
Document = dict[str, Any]

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def walked() -> Iterator[Target]:
    with closing(Target("ruby", WALKED)) as target:
        yield target


def sampled(
    trace: TRACE,
    target: Target,
    step: str,
    *options: object,
    pid: int | None = None,
    engine: str = "bpf",
) -> Document:
    """Sample a target by the kernel during a step. Return the JSON document."""
    words = ("--engine", engine, "-r", RATE, "--format", "json", *options)
    tracer = trace("stacks", pid or target.pid, *words)
    assert target.step(step) == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    found: Document = json.loads(out)
    assert found["engine"] == engine
    assert found["unit"] == "ns"
    assert sum(row["weight"] for row in found["stacks"]) == found["weight"]
    return found


def ran(seconds: float) -> Any:
    """Return the expected weight of a thread with a given run time by its own CPU
    clock."""
    return pytest.approx(seconds * 1e9, rel=0.02)


def periods(weight: int) -> int:
    """Return the number of sampling periods in a weight.

    Each tick weighs one period if the run time is unknown, which is so in the last
    second of a thread that has ended.
    """
    return round(weight * RATE / 1e9)


def names(sample: Sample) -> list[str]:
    return [frame.name for frame in sample.stack.frames]


@each_build
def test_each_ruby(build: Build, trace: TRACE) -> None:
    with closing(Target(*build.words(), WALKED)) as target:
        pid = int(target.ready.split()[1])
        found = sampled(trace, target, "deep 40 1.5", pid=pid)
    expected = ("<main>", "Kernel#public_send", *["Walked#deep"] * 41, "Object#burn")
    stacks: Counter[tuple[str, ...]] = Counter()
    for stack, weight in by_names(found).items():
        stacks[stack[: len(expected)]] += weight
    assert stacks[expected] == ran(1.5)
    assert stacks[expected] > 0.98 * found["weight"]
    assert found["lost"] == 0
    assert found["counters"]["samples"] in target.ticks(1.5, RATE)
    assert found["counters"]["unresolved"] == 0
    assert found["counters"]["trimmed"] <= 0.01 * found["counters"]["samples"]


@each_build
def test_frames_beside_pages_that_were_not_written(build: Build, trace: TRACE) -> None:
    with closing(Target(*build.words(), DESCENDING)) as target:
        pid = int(target.ready.split()[1])
        found = sampled(trace, target, "", "-r", 999, pid=pid)
    counters = found["counters"]
    assert counters["unreadable"] == 0
    assert below(found, "Object#descend") > 0.95 * found["weight"], by_names(found)


@pytest.mark.parametrize("build", STARTERS, ids=str)
def test_threads_that_just_started(build: Build) -> None:
    """A thread without a frame has no Ruby stack. It is not counted as lost.

    Ruby 4.0 starts so many threads that some stacks exceed the room for them. Each
    such sample is counted as lost once.
    """
    program = (
        "puts 'ready'; $stdout.flush;"
        "4.times.map { Thread.new { loop { Thread.new { 1 + 1 }.join } } }.each(&:join)"
    )
    words = ("--engine", "bpf", "--mode", "wall", "-r", 999, "--format", "json")
    with closing(Target(*build.words(), "-e", program)) as target:
        out, err, code = run("stacks", target.pid, "-d", 3, *words)
    assert code in (0, 5), err
    counters = json.loads(out)["counters"]
    assert counters["samples"] > 0
    # The kernel cannot read pages that are not in memory.
    assert counters["unreadable"] <= counters["samples"] / 100_000


def test_the_newest_frames_of_a_deep_stack(walked: Target, trace: TRACE) -> None:
    found = sampled(trace, walked, "deep 700 1.0")
    assert found["counters"]["truncated"] in walked.ticks(1.0, RATE)
    cut = [stack for stack in by_names(found) if "<main>" not in stack]
    assert max(map(len, cut)) == MOST_FRAMES
    assert {stack[:-5] for stack in cut} <= {("Walked#deep",) * n for n in range(512)}
    assert below(found, "Object#burn") == ran(1.0)


def test_children_from_their_first_instruction(walked: Target, trace: TRACE) -> None:
    """Some children end before they are attached. Their samples count nevertheless.

    A page that is copied at the first write after a fork is missing for a moment. A
    tick at this moment reads no stack.
    """
    found = sampled(trace, walked, "children 8 0.25", "--subprocesses")
    own: Counter[int] = Counter()
    for row in found["stacks"]:
        own[found["threads"][row["thread"]]["pid"]] += row["weight"]
    del own[walked.pid]
    assert len(own) == 8
    # The last second of a child that has ended is weighed by ticks, which are late on
    # a busy machine. So the sum is compared below.
    assert all(weight >= 0.7 * 0.25e9 for weight in own.values()), own
    named = below(found, "Object#burn") + below(found, "(unresolved)")
    assert periods(named) in walked.ticks(8 * 0.25, RATE)
    assert found["counters"]["samples"] in walked.ticks(8 * 0.25, RATE)
    assert below(found, "Object#burn") > 0
    assert found["lost"] <= 2


@pytest.mark.parametrize("verb", ["threads", "fibers"])
def test_threads_and_fibers_that_come_and_go(
    verb: str, walked: Target, trace: TRACE
) -> None:
    found = sampled(trace, walked, f"{verb} 20 0.05")
    burned = below(found, "Object#burn")
    assert periods(burned) in walked.ticks(20 * 0.05, RATE)
    assert found["counters"]["samples"] in walked.ticks(20 * 0.05, RATE)
    assert found["lost"] == 0
    if verb == "fibers":  # one thread, which does not end
        assert burned == ran(20 * 0.05)


@each_build
@pytest.mark.parametrize("engine", ["bpf", "memory"])
def test_collections(build: Build, engine: str, trace: TRACE) -> None:
    """Live objects are marked, and dead objects are swept."""
    with closing(Target(*build.words(), WALKED)) as target:
        for verb, most in ("gc", "(marking)"), ("litter", "(sweeping)"):
            pid, before = int(target.ready.split()[1]), clocks(target)
            started = run_time(pid)
            found = sampled(trace, target, f"{verb} 1.0", pid=pid, engine=engine)
            assert found["weight"] == pytest.approx(run_time(pid) - started, rel=0.02)
            every = below(found, "(garbage collection)")
            assert every >= 0.9 * below(found, "GC.start")
            modes = [below(found, name) for name in ("(marking)", "(sweeping)")]
            assert sum(modes) >= 0.95 * every > 0, modes
            assert below(found, most) > 0.5 * every, modes
            took = [
                now - then for now, then in zip(clocks(target), before, strict=True)
            ]
            if any(took):
                off = 100 * (modes[0] / sum(modes) - took[0] / sum(took))
                samples = int(
                    found["counters"]["samples"] * sum(modes) / found["weight"]
                )
                waited = waits(samples, sum(took)) if engine == "memory" else 0
                assert abs(off) <= margin(samples, 5) + waited, (modes, took)


def waits(samples: int, milliseconds: int) -> float:
    """Return the percentage of samples without a CPU, which the CPU clock does not
    explain.

    The memory engine counts these samples. All samples of one wait have the same time.
    """
    return max(0.0, 100 * (1 - milliseconds * RATE / 1000 / samples))


def clocks(target: Target) -> list[int]:
    """Return the ms spent on marking and sweeping so far, or 0 if Ruby does not report
    it."""
    said = target.step("clocks")
    assert read_line(target.process.stdout) == "done"
    return list(map(int, said.split()))


def test_code_that_comes_and_goes_keeps_its_own_names(
    walked: Target, trace: TRACE
) -> None:
    """Some methods that end before they are named are exceptions: docs/profiling.md."""
    found = sampled(trace, walked, "changing 3.0 0.002 10")
    numbers = [re.findall(r"changed_(\d+)", frame["name"]) for frame in found["frames"]]
    mixed = {
        index
        for index, frame in enumerate(found["frames"])
        if numbers[index]
        and frame["path"].startswith("changed")
        and (frame["path"], str(frame["line"]))
        != (f"changed_{numbers[index][0]}.rb", numbers[index][0])
    }
    each: Counter[str] = Counter()
    mixed_weight = 0
    for row in found["stacks"]:
        own = {number for frame in row["frames"] for number in numbers[frame]}
        each.update(dict.fromkeys(own, row["weight"]))
        mixed_weight += row["weight"] * bool(mixed & set(row["frames"]))
    assert found["weight"] == pytest.approx(3e9, rel=0.02)
    samples = found["counters"]["samples"]
    tick = found["weight"] / samples
    # Each uses 6 ms, at most 4 or 5 ticks. More ticks are another method's.
    wrong = sum(max(0, round(weight / tick) - 5) for weight in each.values())
    wrong += round(mixed_weight / tick)
    assert wrong <= 6, each  # some precede the first change that was noticed
    # Other samples are of the collector, or are counted as unnamed.
    named, unresolved = sum(each.values()) / tick, found["counters"]["unresolved"]
    assert named + unresolved + found["counters"]["trimmed"] >= 0.25 * samples


def test_a_program_that_becomes_another(walked: Target, trace: TRACE) -> None:
    tracer = trace(
        "stacks", walked.pid, "--engine", "bpf", "-r", RATE, "--format", "json"
    )
    assert walked.step("exec 2.5") == "again"
    assert walked.step() == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    # The tracer attaches again within a second.
    burned = below(json.loads(out), "Object#burn")
    assert 0.4 * 2.5e9 <= burned <= 1.02 * 2.5e9


def test_stacks_before_another_program(trace: TRACE) -> None:
    """They keep the names that were read before. Only the last stacks may lack
    names."""
    burn = "def burn(t) = (nil until Process.clock_gettime(2) > t)"
    code = (
        f"$stdout.sync = true; {burn}; puts :ready; gets; burn(0.4); exec 'sleep 1e3'"
    )
    with closing(Target("ruby", "-e", code)) as target:
        words = ("stacks", target.pid, "--engine", "bpf", "-r", RATE)
        tracer = trace(*words, "--format", "json")
        target.tell()
        comm = Path(f"/proc/{target.pid}/comm")
        assert comes_true(lambda: comm.read_text() == "sleep\n")
        out, err, code_ = tracer.finish()
    assert code_ == 0, err
    found = json.loads(out)
    assert below(found, "Object#burn") >= found["weight"] / 2, err


def test_a_thread_that_becomes_another_program(walked: Target, trace: TRACE) -> None:
    """The thread then has the main thread's number, and its own never ends."""
    options = ("--engine", "bpf", "--mode", "wall", "--threads", "--format", "json")
    tracer = trace("stacks", walked.pid, *options)
    assert walked.step("replace 3.5") == "again"
    assert walked.step() == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    times: Counter[bool] = Counter()
    for stack in document["stacks"]:
        thread = document["threads"][stack["thread"]]
        times[thread["tid"] == walked.pid] += stack["weight"]
    # Attaching to the new program takes up to a second.
    assert times[True] > 1.5e9 > 1e9 > times[False], document


def test_a_recording_has_each_sample(
    walked: Target, trace: TRACE, tmp_path: Path
) -> None:
    path = tmp_path / "out.rbrec"
    options = ("--mode", "cpu", "--engine", "bpf", "-r", RATE, "-o", path)
    tracer = trace("record", walked.pid, *options)
    assert walked.step("deep 3 1.0") == "done"
    _, err, code = tracer.finish()
    assert code == 0, err
    found = Recording(path)
    samples = [sample for sample in found if "Object#burn" in names(sample)]
    assert len(samples) in walked.ticks(1.0, RATE)
    assert sum(sample.weight for sample in samples) == ran(1.0)
    times = [sample.time_ns for sample in samples]
    assert times == sorted(set(times))
    out, err, code = run("report", path, "--format", "json")
    assert code == 0, err
    assert json.loads(out)["engine"] == "bpf"


def test_intervals(walked: Target, trace: TRACE) -> None:
    options = ("--engine", "bpf", "-r", RATE, "-i", 0.5, "--format", "folded")
    tracer = trace("stacks", walked.pid, *options)
    assert walked.step("deep 3 1.0") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    lines = [line.rsplit(" ", 1) for line in out.splitlines() if "burn" in line]
    assert sum(int(weight) for _, weight in lines) == ran(1.0)
    assert len(lines) > len({stack for stack, _ in lines})


def test_top(walked: Target, trace: TRACE) -> None:
    tracer = trace("top", walked.pid, "--engine", "bpf", "-r", RATE)
    assert walked.step("deep 3 1.5") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "Object#burn" in out


@pytest.mark.parametrize("options", [("--pause",), ("--rate", "20000")])
def test_what_the_kernel_does_not_do(
    options: tuple[str, ...], walked: Target, trace: TRACE
) -> None:
    _, err, code = run("stacks", walked.pid, "--engine", "bpf", *options)
    assert code == 2
    assert "--engine bpf and --" in err
    tracer = trace("stacks", walked.pid, *options, "--format", "json")
    assert walked.step("deep 3 0.5") == "done"
    out, err, code = tracer.finish()
    assert (code, json.loads(out)["engine"]) == (0, "memory"), err
