"""What sampling stacks costs: us, and the program that is looked at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from table import Ratio, Row

from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.session.sampling import Sampling, SamplingOptions
from rbtrace_py.session.targets import Targets
from targets import HERE, ROOT, Target

MAIN = "from rbtrace_py.cli.main import main; main()"
OURS, PAUSING, RUNNING = "rbtrace-py", "rbspy", "rbspy --nonblocking"
SETTLE = 1.5
"""Seconds after a tool's start at which its start-up is surely over."""

GOALS = {
    (20, 100): 37,
    (100, 100): 90,
    (500, 100): 330,
    (20, 1000): 26,
    (100, 1000): 49,
}
FLAT_OUT = 100_000


class Run(NamedTuple):
    """One run of a tool on a target.

    cpu_us: CPU time a sample, start and end left out
    rate: samples a second that came out
    speed: of the target, against that just before the tool was started
    """

    cpu_us: float
    rate: float
    speed: float


def rbspy() -> str | None:
    """RBSPY=… or the one on the PATH."""
    return os.environ.get("RBSPY") or shutil.which("rbspy")


def cost(rounds: int, seconds: float) -> list[Row]:
    """CPU a sample and the target's speed, by depth and rate, each tool in turn."""
    rows = []
    for depth in (20, 100, 500):
        for rate in (100, 1000, FLAT_OUT):
            tools = [OURS]
            if rbspy() and rate != FLAT_OUT:
                tools += [PAUSING, RUNNING]
            rows += _rows(depth, rate, _runs(depth, rate, tools, rounds, seconds))
    return rows


def _runs(
    depth: int, rate: int, tools: Sequence[str], rounds: int, seconds: float
) -> dict[str, list[Run]]:
    target = Target("ruby", str(HERE / "ruby" / "deep.rb"), str(depth))
    found: dict[str, list[Run]] = {tool: [] for tool in tools}
    try:
        for number in range(rounds):
            turn = number % len(tools)
            for tool in [*tools[turn:], *tools[:turn]]:
                found[tool].append(_run(tool, target, rate, seconds))
    finally:
        target.close()
    return found


def _rows(depth: int, rate: int, runs: dict[str, list[Run]]) -> Iterator[Row]:
    ours = runs[OURS]
    shown = "flat out" if rate == FLAT_OUT else f"{rate} Hz"
    what = f"depth {depth}, {shown}"
    goal = GOALS.get((depth, rate))
    costs = [run.cpu_us for run in ours]
    spread = f"({min(costs):.0f}–{max(costs):.0f})"
    measured = f"{median(costs):.0f} µs {spread}"
    others = [tool for tool in runs if tool != OURS]
    for tool in others or [""]:
        theirs = [run.cpu_us for run in runs.get(tool, [])]
        yield Row(
            f"{what}: CPU a sample",
            measured,
            f"{tool} {median(theirs):.0f} µs" if theirs else _no_rbspy(rate),
            Ratio.of(costs, theirs) if theirs else None,
            f"≤ {goal} µs" if goal else "",
        )
    baseline = ", ".join(
        f"{tool} {_percent(runs[tool])}, {_rate(runs[tool])}" for tool in others
    )
    yield Row(
        f"{what}: target's speed, samples",
        f"{_percent(ours)}, {_rate(ours)}",
        baseline,
    )


def _no_rbspy(rate: int) -> str:
    return "" if rate == FLAT_OUT else "no rbspy here"


def _percent(runs: Sequence[Run]) -> str:
    return f"{100 * median(run.speed for run in runs):.0f} %"


def _rate(runs: Sequence[Run]) -> str:
    return f"{median(run.rate for run in runs):,.0f}/s"


def _run(tool: str, target: Target, rate: int, seconds: float) -> Run:
    duration = int(seconds + SETTLE + 1.5)
    alone = _speed(target, 1)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "stacks.folded"
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
            before, start = _cpu_ns(process.pid), time.monotonic()
            speed = _speed(target, seconds)
            used, window = _cpu_ns(process.pid) - before, time.monotonic() - start
            assert process.wait() == 0, command
        lines = path.read_text().splitlines()
    samples = sum(int(line.rsplit(" ", 1)[1]) for line in lines if line)
    achieved = samples / duration
    return Run(used / 1000 / (achieved * window), achieved, speed / alone)


def _command(
    tool: str, pid: int, rate: int, duration: int, path: Path
) -> Sequence[str]:
    if tool == OURS:
        words = ["stacks", str(pid), "-r", str(rate), "-d", str(duration)]
        return [sys.executable, "-c", MAIN, *words, "-o", str(path)]
    found = rbspy()
    assert found
    words = ["record", "--pid", str(pid), "--rate", str(rate), "--silent"]
    words += ["--duration", str(duration), "--format", "collapsed", "--file", str(path)]
    words += ["--raw-file", str(path.with_suffix(".raw.gz"))]
    return [found, *words, *(["--nonblocking"] if tool == RUNNING else [])]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}


def _cpu_ns(pid: int) -> int:
    """CPU time of all threads; exact, where ``stat`` counts ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _speed(target: Target, seconds: float) -> float:
    """Turns a second that the target makes by the clock on the wall."""
    count, then = map(int, target.ask("count").split())
    time.sleep(seconds)
    later, now = map(int, target.ask("count").split())
    return (later - count) / (now - then) * 1e9


def start(rounds: int) -> list[Row]:
    """From the command to its end, where that is one look."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        warm = {"PYTHONPYCACHEPREFIX": str(Path(place) / "bytecode")}
        for threads in (0, 100):
            with _standing(threads) as pid:
                rows += _start_rows(str(pid), threads, rounds, warm)
    return rows


@contextmanager
def _standing(threads: int) -> Iterator[int]:
    program = str(ROOT / "tests" / "targets" / "standing.rb")
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
    """Of an hour's samples at 1000 Hz, taken as fast as they come."""
    target = subprocess.Popen(
        ["ruby", str(HERE / "ruby" / "wander.rb")], stdout=subprocess.PIPE
    )
    assert target.stdout
    target.stdout.readline()
    targets = Targets.from_pids([target.pid])
    marks: list[tuple[int, int]] = []
    try:
        with Sampling(targets, SamplingOptions(rate=1000)) as sampling:
            counts = StackCounts(sampling.statistics)
            add: Callable[..., object] = counts.add
            statistics = sampling.statistics
            for step in range(1, 11):
                while statistics.samples < samples * step // 10:
                    for _ in range(100):
                        sampling.round(add)
                    sampling.look()
                marks.append((statistics.samples, _resident()))
            held = len(counts)
    finally:
        targets.close()
        target.kill()
        target.wait()
    return [
        *(
            Row(f"memory after {done:,} samples", f"{size / 1e6:.0f} MB")
            for done, size in marks
        ),
        Row("stacks kept apart", f"{held:,}", f"{statistics.other:,} in (other)"),
        Row("stacks that could not be read", f"{statistics.failed:,}"),
    ]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
