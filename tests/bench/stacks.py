"""Cost of sampling stacks, to the sampler and to the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from spent import Spent, middle
from table import Ratio, Row

import rubies
import tags
from rbtrace_py.bpf.run_statistics import RunStatistics
from rbtrace_py.session.stacks.sampling_options import MAX_RATE, EngineChoice
from targets import HERE, ROOT, Target

MAIN = "from rbtrace_py.cli.main import main; main()"
BPF, MEMORY = "--engine bpf", "--engine memory"
PAUSING, RUNNING = "rbspy", "rbspy --nonblocking"
SETTLE = 1.5
"""Seconds after a tool's start at which its start-up is surely over."""
FLAT_OUT = 100_000
KERNEL_RATE = 5_000.0
"""Rate in Hz at which a program whose stacks are all new is read without losses."""


class Run(NamedTuple):
    """One run of a tool on a target.

    ``spent`` is CPU time per sample, without start and end. ``rate`` is the reported
    samples per second. ``speed`` is the target's speed on its CPU, compared with that
    just before the tool's start.
    """

    spent: Spent
    rate: float
    speed: float


def rbspy() -> str | None:
    """Return RBSPY=…, or the rbspy on the PATH."""
    return os.environ.get("RBSPY") or shutil.which("rbspy")


def cost(rounds: int, seconds: float) -> list[Row]:
    """Measure CPU per sample and the target's speed, by depth and rate, each tool in
    turn."""
    rows = [_wakes(rate, rounds, seconds) for rate in (99, 999)]
    tools = [BPF, MEMORY, *([RUNNING, PAUSING] if rbspy() else [])]
    for depth in (20, 100, 500):
        for rate in (99, 999):
            rows += _rows(depth, rate, _runs(depth, rate, tools, rounds, seconds))
        rows += _rows(
            depth, FLAT_OUT, _runs(depth, FLAT_OUT, [MEMORY], rounds, seconds)
        )
    return rows


def _wakes(rate: int, rounds: int, seconds: float) -> Row:
    """Measure the minimum cost of a sampler: sleeping until its time."""
    found = []
    for _ in range(rounds):
        before, due = time.thread_time_ns(), time.monotonic()
        for _ in range(int(rate * seconds)):
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        used = time.thread_time_ns() - before
        found.append(used / 1000 / int(rate * seconds))
    return Row(f"{rate} Hz: a sleep alone, CPU", f"{middle(found, '.0f')} µs")


def _runs(
    depth: int, rate: int, tools: Sequence[str], rounds: int, seconds: float
) -> dict[str, list[Run]]:
    target = Target("ruby", str(HERE / "ruby" / "deep.rb"), str(depth))
    found: dict[str, list[Run]] = {tool: [] for tool in tools}
    try:
        with RunStatistics():
            for number in range(rounds):
                turn = number % len(tools)
                for tool in [*tools[turn:], *tools[:turn]]:
                    found[tool].append(_run(tool, target, rate, seconds))
    finally:
        target.close()
    return found


def _rows(depth: int, rate: int, runs: dict[str, list[Run]]) -> Iterator[Row]:
    """Yield each tool's costs, and the first tool's costs compared with each
    other's."""
    first, *others = runs
    shown = "flat out" if rate == FLAT_OUT else f"{rate} Hz"
    goals = {MEMORY: 3 if depth == 500 else 10, RUNNING: 20, PAUSING: 20}
    for tool, found in runs.items():
        costs = [run.spent.both / 1000 for run in found]
        bpf = median(run.spent.bpf for run in found) / 1000
        yield Row(
            f"depth {depth}, {shown}, {tool}",
            f"{middle(costs, '.0f')} µs CPU a sample, BPF {bpf:.1f},"
            f" {median(run.rate for run in found):,.0f}/s,"
            f" target's speed {100 * median(run.speed for run in found):.0f} %",
        )
    for tool in others:
        ours, theirs = ([run.spent.both for run in runs[one]] for one in (first, tool))
        yield Row(
            f"depth {depth}, {shown}: CPU a sample",
            first,
            tool,
            Ratio.of(ours, theirs),
            f"≤ 1/{goals[tool]}",
        )


def _run(tool: str, target: Target, rate: int, seconds: float) -> Run:
    duration = int(seconds + SETTLE + 2.5)
    alone = _speed(target, 1)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "stacks"
        command = _command(tool, target.pid, rate, duration, path)
        with subprocess.Popen(
            command,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            with suppress(OSError):
                os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            time.sleep(SETTLE)
            before, start = Spent.of(process.pid), time.monotonic()
            speed = _speed(target, seconds)
            used = Spent.of(process.pid).since(before)
            window = time.monotonic() - start
            assert process.wait() == 0, command
        samples = _samples(path.read_text())
    achieved = samples / duration
    return Run(used.by(achieved * window), achieved, speed / alone)


def _samples(text: str) -> int:
    """Return the number of samples in our JSON, or in rbspy's folded stacks."""
    if text.startswith("{"):
        return int(json.loads(text)["counters"]["samples"])
    return sum(int(line.rpartition(" ")[2]) for line in text.splitlines() if line)


def _command(
    tool: str, pid: int, rate: int, duration: int, path: Path
) -> Sequence[str]:
    if tool in (BPF, MEMORY):
        words = ["stacks", str(pid), "-r", str(rate), "-d", str(duration)]
        words += [*tool.split(), "--format", "json", "-o", str(path)]
        return [sys.executable, "-c", MAIN, *words]
    found = rbspy()
    assert found
    words = ["record", "--pid", str(pid), "--rate", str(rate), "--silent"]
    words += ["--duration", str(duration), "--format", "collapsed", "--file", str(path)]
    words += ["--raw-file", str(path.with_suffix(".raw.gz"))]
    return [found, *words, *(["--nonblocking"] if tool == RUNNING else [])]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}


def _speed(target: Target, seconds: float) -> float:
    """Return the target's turns per second of time on a CPU or held up.

    Waits for a CPU are left out, because other programs run on the machine.
    """
    count, then = map(int, target.ask("count").split())
    waited = _waited_ns(target.pid)
    time.sleep(seconds)
    later, now = map(int, target.ask("count").split())
    return (later - count) / (now - then - (_waited_ns(target.pid) - waited)) * 1e9


def _waited_ns(pid: int) -> int:
    """Return how long it was runnable without running."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def start(rounds: int) -> list[Row]:
    """Run a command from its start to its end."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        warm = {"PYTHONPYCACHEPREFIX": str(Path(place) / "bytecode")}
        for threads in (0, 100):
            with _standing(threads) as pid:
                rows += _start_rows(str(pid), threads, rounds, warm)
    return rows


@contextmanager
def _standing(threads: int) -> Iterator[int]:
    program = str(ROOT / "tests" / "targets" / "stacks/standing.rb")
    process = subprocess.Popen(
        ["ruby", program, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _start_rows(
    pid: str, threads: int, rounds: int, extra: dict[str, str]
) -> Iterator[Row]:
    ours = [sys.executable, "-c", MAIN]
    variants: dict[str, list[str]] = {
        "dump": [*ours, "dump", pid],
        "stacks -n 1": [*ours, "stacks", pid, "--mode", "wall", "-n", "1"],
        "nothing": [*ours, "--version"],
    }
    found = rbspy()
    if found:
        variants["rbspy snapshot"] = [found, "snapshot", "--pid", pid]
    kept = {k: v for k, v in _environment().items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = _timed(variants, rounds, {**kept, **extra})
    nothing = median(times["nothing"])
    for name in ("dump", "stacks -n 1"):
        theirs = times.get("rbspy snapshot")
        yield Row(
            f"{name}, {threads + 3} threads",
            f"{median(times[name]) * 1000:.0f} ms",
            f"--version {nothing * 1000:.0f} ms"
            + (f", rbspy snapshot {median(theirs) * 1000:.0f} ms" if theirs else ""),
        )


def _timed(
    variants: dict[str, list[str]], rounds: int, environment: dict[str, str]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, command in variants.items():
            begun = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            if number:  # the first one compiles
                found[name].append(time.perf_counter() - begun)
    return found


def memory(samples: int) -> list[Row]:
    """Measure the memory for an hour's samples, by either engine, at full speed.

    With 50 threads, the kernel takes as many samples at 999 Hz as with one: they take
    turns.
    """
    return [
        *_memory(EngineChoice.MEMORY, 1, MAX_RATE, samples),
        *_memory(EngineChoice.BPF, 50, KERNEL_RATE, samples),
    ]


def _memory(
    engine: EngineChoice, threads: int, rate: float, samples: int
) -> Iterator[Row]:
    """Yield rows of a program that always calls new methods, in a separate process."""
    words = [sys.executable, str(HERE / "memory.py"), engine.value, str(threads)]
    words += [str(rate), str(samples)]
    done = subprocess.run(
        words, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    for done, size in found["marks"]:
        what = f"{engine.value}, {threads} threads, {done:,} samples"
        yield Row(what, f"{size / 1e6:.0f} MB", goal="≤ 150 MB")
    yield Row(
        "stacks kept apart", f"{found['rows']:,}", f"{found['other']:,} in (other)"
    )
    yield Row("failed samples", f"{found['failed']:,}")


def torn(samples: int) -> list[Row]:
    """Count torn samples of a target that never rests, on another CPU."""
    program = str(ROOT / "tests" / "targets" / "stacks/stack_tags.rb")
    target = Target("ruby", program, str(tags.LEVELS))
    cpus = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(target.pid, {cpus[-1]})
        os.sched_setaffinity(0, {cpus[0]})
        vm, wrong = rubies.Running(target, target.pid).vm(), 0
        (thread,) = vm.threads()
        for _ in range(samples):
            walked = vm.sample(thread)
            if walked is not None and not walked.flags:
                wrong += tags.contradiction(walked.stack.frames) is not None
        counts = vm.counts
    finally:
        os.sched_setaffinity(0, cpus)
        target.close()

    def share(count: int) -> str:
        return f"{count:,} ({100 * count / samples:.3f} %)"

    return [
        Row("wrong and not flagged", f"{wrong:,}", f"of {samples:,}", goal="0"),
        Row("newest frames changed while read, and flagged", share(counts.trimmed)),
        Row("failed", share(counts.failed), goal="≤ 0.5 %"),
    ]
