"""OpenTelemetry's eBPF profiler and ``stacks`` on the same programs, at 99 Hz.

Measures the CPU time of each tool, including its BPF programs, and the share of samples
with all Ruby frames. OTEL_PROFILER is the path of ``ebpf-profiler``. It samples the
whole machine, or only the given processors, and thus only the program.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from realapp import (
    MAIN,
    PACKAGES,
    STACKS,
    TOOL_WARM_UP,
    application,
    can_run,
    cpu,
    load,
    tool,
)
from spent import Spent, middle
from table import Ratio, Row

from rbtrace_py.bpf.run_statistics import RunStatistics
from targets import HERE, Target

try:
    from collector import Collector, Stack
except ImportError:
    Collector = None

PROFILER = "OpenTelemetry's profiler"
ALONE = f"{PROFILER}, one processor"
DEPTH = 300
LATEST = 20
"""Seconds within which the profiler, which sends every 4 to 6 s, has sent."""


class Subject(NamedTuple):
    """A profiled program.

    ``root`` is part of the name of each stack's first frame. ``work`` makes the program
    work for some seconds.
    """

    name: str
    pid: int
    root: str
    work: Callable[[int], object]


class Run(NamedTuple):
    """One run of a tool.

    ``spent`` is its CPU per second. ``rate`` is the samples per second of the program's
    CPU. ``frames`` is the median of the complete stacks. ``complete`` and ``without``
    are the percentages of samples with all Ruby frames and with none.
    """

    spent: Spent
    rate: float
    frames: float
    complete: float
    without: float

    @classmethod
    def of(
        cls, subject: Subject, spent: Spent, used: float, stacks: Counter[Stack]
    ) -> Run:
        """used: seconds of CPU that the program had while the stacks were taken"""
        samples = stacks.total()
        percent = 100 / max(1, samples)
        whole = Counter({s: n for s, n in stacks.items() if subject.root in s.root})
        none = sum(count for stack, count in stacks.items() if not stack.frames)
        return cls(
            spent,
            samples / used,
            median(stack.frames for stack in whole.elements()) if whole else 0,
            percent * whole.total(),
            percent * none,
        )


def cost(rounds: int, seconds: int) -> list[Row]:
    if not os.environ.get("OTEL_PROFILER"):
        return [Row(PROFILER, "not measured: set OTEL_PROFILER")]
    if Collector is None:
        needed = "pip install grpcio opentelemetry-proto"
        return [Row(PROFILER, f"not measured: {needed}")]
    with RunStatistics():
        return [*_loop(rounds, seconds), *_rails(rounds, seconds)]


def _loop(rounds: int, seconds: int) -> Iterator[Row]:
    script = str(HERE / "ruby" / "deep.rb")
    with closing(Target("ruby", script, str(DEPTH))) as target:
        target.in_real_time()
        name = f"depth {DEPTH}"
        yield from _rows(
            Subject(name, target.pid, "<main>", time.sleep), rounds, seconds
        )


def _rails(rounds: int, seconds: int) -> Iterator[Row]:
    if not can_run():
        yield Row("a Rails request", f"not measured: install {PACKAGES}")
        return
    with tempfile.TemporaryDirectory() as folder, application(folder) as app:
        work = partial(load, app)
        yield from _rows(
            Subject("Rails", app.pid, "spawn_thread", work), rounds, seconds
        )


def _rows(subject: Subject, rounds: int, seconds: int) -> Iterator[Row]:
    last = str(max(os.sched_getaffinity(0)))
    ways: dict[str, Callable[[], Run]] = {
        STACKS: lambda: _ours(subject, seconds),
        PROFILER: lambda: _theirs(subject, seconds),
        ALONE: lambda: _theirs(subject, seconds, "-pin-cpu-ids", last),
    }
    names, runs = list(ways), {name: [] for name in ways}
    for number in range(rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            runs[name].append(ways[name]())
    for name, found in runs.items():
        yield Row(f"{subject.name}: {name}", _text(found))
    for name in (PROFILER, ALONE):
        cpus = ([run.spent.both for run in runs[one]] for one in (STACKS, name))
        what = f"{subject.name}: CPU of {STACKS}"
        yield Row(what, "", name, Ratio.of(*cpus), "≤ 1")


def _text(runs: list[Run]) -> str:
    bpf = median(run.spent.bpf for run in runs) / 1e7
    return ", ".join(
        [
            f"{middle([run.spent.both / 1e7 for run in runs])} % of a CPU"
            f" (BPF {bpf:.2f} %)",
            f"complete {middle([run.complete for run in runs], '.1f')} %",
            f"no Ruby frame {middle([run.without for run in runs], '.1f')} %",
            f"{median(run.frames for run in runs):.0f} frames",
            f"{median(run.rate for run in runs):.0f} samples a second of its CPU",
        ]
    )


def _ours(subject: Subject, seconds: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stacks.folded"
        words = ["-c", MAIN, "stacks", str(subject.pid), "-o", str(path)]
        with tool([sys.executable, *words]) as pid:
            before = cpu(subject.pid)
            subject.work(TOOL_WARM_UP)
            spent = _spent(subject, pid, seconds)
            used = cpu(subject.pid) - before
        stacks = Counter[Stack]()
        for line in path.read_text().splitlines():
            frames, _, count = line.rpartition(" ")
            stacks[Stack.of(frames.split(";"))] += int(count)
    return Run.of(subject, spent, used, stacks)


def _theirs(subject: Subject, seconds: int, *more: str) -> Run:
    with closing(Collector()) as collector:
        words = ["-collection-agent", collector.address, "-disable-tls"]
        words += ["-tracers", "ruby", "-samples-per-second", "99", *more]
        with tool([os.environ["OTEL_PROFILER"], *words]) as pid:
            subject.work(TOOL_WARM_UP)
            begin, before = time.time_ns(), cpu(subject.pid)
            spent = _spent(subject, pid, seconds)
            end, used = time.time_ns(), cpu(subject.pid) - before
            for _ in range(LATEST):
                if collector.has_all_until(end):
                    break
                subject.work(1)
            else:
                raise RuntimeError(f"nothing came from {' '.join(words)}")
        stacks = collector.stacks(subject.pid, begin, end)
    return Run.of(subject, spent, used, stacks)


def _spent(subject: Subject, pid: int | None, seconds: int) -> Spent:
    """Return what a tool uses per second while the program works."""
    assert pid is not None
    before, begin = Spent.of(pid), time.monotonic()
    subject.work(seconds)
    return Spent.of(pid).since(before).by(time.monotonic() - begin)
