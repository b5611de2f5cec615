"""Cost of the tools on a real application: a Rails request under puma, wrk as load.

The application has a processor of its own; the load and the tool share another. Each
round measures the application under each tool in turn.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from spent import Spent, middle
from stacks import PAUSING, RUNNING, rbspy
from table import Ratio, Row

from rbtrace_py.bpf.run_statistics import RunStatistics
from rbtrace_py.recording.call_recording import CallsRecording
from targets import HERE, ROOT

MAIN = "from rbtrace_py.cli.main import main; main()"
APP = HERE / "rails"
NOTHING = "nothing"
EMPTY = "an empty hook on call and return"
TEN = "latency method -m, ten methods"
METHODS = (
    "ItemsController#index",
    "Item#price",
    "ActionView::Template#render",
    "ActionView::TemplateRenderer#render",
    "ActionView::CollectionRenderer#render_collection",
    "ActionController::Metal#dispatch",
    "ActionController::Rendering#process_action",
    "ActionDispatch::Executor#call",
    "ActiveRecord::LogSubscriber#sql",
    "ActiveRecord::Relation#exec_queries",
)
"""A request calls these methods 51 times."""
GOALS = {
    "count method": "≤ 1.05×",
    "latency method": "≤ 1.12×",
    "calls --slow 100": "≤ 1.12×",
    "calls --record": "≤ 1.12×",
}
"""Goals compared with the empty hook."""
STACKS, STACKS_MEMORY = "stacks at 99 Hz", "stacks --engine memory"
RECORD, RECORD_MEMORY = "record", "record --engine memory"
SAMPLERS = (
    (STACKS, RUNNING, "≤ 1/10"),
    (STACKS, STACKS_MEMORY, ""),
    (RECORD, RUNNING, "≤ 1/10"),
    (RECORD, RECORD_MEMORY, ""),
    (STACKS_MEMORY, RUNNING, "≤ 1"),
)
"""Pairs of variants whose CPU is compared."""
WARM_UP = 8
"""Seconds of load before measuring."""
TOOL_WARM_UP = 5
"""Seconds for a sampler to learn the application's code."""
SETTLE = 1.5
"""Seconds after the start of a tool that does not report when it is attached."""
TICKS = os.sysconf("SC_CLK_TCK")
PROGRAMS = ("puma", "wrk")
PACKAGES = "ruby-rails, ruby-sqlite3, puma and wrk"


@dataclass(frozen=True)
class Run:
    """The application under load, and a tool.

    ``rate`` is requests per second, and ``p99_ms`` is their latency. ``app_us`` is the
    application's CPU per request, and ``tool`` is the tool's CPU per second. ``busy``
    is the number of CPUs that the application used.
    """

    rate: float
    p99_ms: float
    app_us: float
    tool: Spent
    busy: float


def cost(rounds: int, seconds: int) -> list[Row]:
    """Measure the application's throughput and p99, and both programs' CPU, under
    each tool."""
    if not can_run():
        return [Row("a Rails request", f"not measured: install {PACKAGES}")]
    with RunStatistics():
        runs = _runs(_samplers, rounds, seconds, TOOL_WARM_UP)
    return [*(_row(name, runs) for name in runs), *_cost_rows(runs)]


def hooks(rounds: int, seconds: int) -> list[Row]:
    """Measure the application's CPU per request: ten methods, all methods, and other
    tools.

    The ten are hooked in an application in which all methods were never hooked.
    """
    if not can_run():
        return [Row("a Rails request", f"not measured: install {PACKAGES}")]
    chosen = _runs(_chosen, rounds, seconds)
    runs = _runs(_hooks, rounds, seconds)
    peers = _runs(_peers, min(rounds, 3), 6 * seconds)  # a request takes a second
    return [
        _cpu_row(TEN, NOTHING, chosen, "≤ 1.06×"),
        *(_cpu_row(name, NOTHING, runs) for name in runs),
        *(_cpu_row(name, EMPTY, runs, goal) for name, goal in GOALS.items()),
        *(_cpu_row(name, NOTHING, peers) for name in peers if name != NOTHING),
    ]


def recording(seconds: int) -> list[Row]:
    """Count the events that `calls --record` of all methods writes and loses."""
    if not can_run():
        return [Row("a Rails request", f"not measured: install {PACKAGES}")]
    with tempfile.TemporaryDirectory() as folder, application(folder) as app:
        load(app, WARM_UP)
        with tool(_recorder(app, folder)) as pid:
            run = _measure(app, pid, seconds)
        found = CallsRecording(f"{folder}/calls.rbrec")
        events = sum(1 for _ in found)
        lost = found.statistics.failed
    rate = f"{events / seconds:,.0f} events a second"
    share = f"tool {100 * run.tool.own / 1e9:.1f} % of a CPU"
    return [
        Row(f"recorded in {seconds} s", f"{rate}, {share}"),
        Row("lost", f"{lost:,}", goal="0"),
    ]


def _runs(
    tools_of: Callable[[App, str], dict[str, list[str]]],
    rounds: int,
    seconds: int,
    warm_up: int = 0,
) -> dict[str, list[Run]]:
    """Measure each tool's runs, each after ``warm_up`` seconds of load."""
    with tempfile.TemporaryDirectory() as folder, application(folder) as app:
        tools = tools_of(app, folder)
        load(app, WARM_UP)
        runs: dict[str, list[Run]] = {name: [] for name in tools}
        names = list(tools)
        for number in range(rounds):
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                with tool(tools[name]) as pid:
                    if warm_up:
                        load(app, warm_up)
                    runs[name].append(_measure(app, pid, seconds))
    return runs


def can_run() -> bool:
    """Return whether the application's packages are installed."""
    return has_libraries("rails", "sqlite3") and all(map(shutil.which, PROGRAMS))


def has_libraries(*names: str) -> bool:
    """Return whether Ruby can load the libraries."""
    words = ["ruby", *(f"-r{name}" for name in names), "-e", ""]
    done = subprocess.run(words, capture_output=True)
    return done.returncode == 0


@dataclass(frozen=True)
class App:
    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/items"


def _pinned(last: bool) -> Sequence[str]:
    """Return the words that keep a program on the last CPU, or on the first.

    The program is in a real-time class, so that other programs disturb it little.
    """
    allowed = os.sched_getaffinity(0)
    place = str(max(allowed) if last else min(allowed))
    return ("chrt", "-r", "1", "taskset", "-c", place)


@contextmanager
def application(folder: str) -> Iterator[App]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*_pinned(True), "puma", "-q", "-t", "3:3", "-b", f"tcp://127.0.0.1:{port}"]
    environment = {
        **os.environ,
        "SHOP_DATABASE": f"{folder}/shop.sqlite3",
        "RUBYOPT": f"-I{ROOT / 'ruby' / 'lib'} -rtracepoint/agent",
    }
    process = subprocess.Popen(
        [*words, "config.ru"],
        cwd=APP,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_for(process, port)
        yield App(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    assert process.stderr
    raise RuntimeError(f"the application ended: {process.stderr.read().decode()}")


def _samplers(app: App, folder: str) -> dict[str, list[str]]:
    """Return the words of each tool by its name in the table."""
    ours = [sys.executable, "-c", MAIN]
    pid, out = str(app.pid), f"{folder}/out"
    stacks, record = [*ours, "stacks", pid], [*ours, "record", pid]
    folded, recording = ["-o", f"{out}.folded"], ["-o", f"{out}.rbrec"]
    memory = ["--engine", "memory"]
    found = {
        NOTHING: [],
        STACKS: [*stacks, *folded],
        STACKS_MEMORY: [*stacks, *memory, *folded],
        "stacks at 999 Hz": [*stacks, "-r", "999", *folded],
        "stacks --mode offcpu": [*stacks, "--mode", "offcpu", *folded],
        RECORD: [*record, *recording],
        RECORD_MEMORY: [*record, *memory, *recording],
    }
    spy = rbspy()
    if spy:
        words = [spy, "record", "-p", pid, "-r", "99", "--silent", "-f", f"{out}.svg"]
        found[RUNNING] = [*words, "--nonblocking"]
        found[PAUSING] = words
    return found


def _hooks(app: App, folder: str) -> dict[str, list[str]]:
    """Return the hooks of all methods, each in an otherwise untraced application."""
    ours, pid = [sys.executable, "-c", MAIN], str(app.pid)
    return {
        NOTHING: [],
        EMPTY: [sys.executable, str(HERE / "empty_hook.py"), pid],
        "count method": [*ours, "count", pid, "method", "--yes"],
        "latency method": [*ours, "latency", pid, "method", "--yes"],
        "calls --slow 100": [*ours, "calls", pid, "--slow", "100", "--yes"],
        "calls --record": _recorder(app, folder),
    }


def _recorder(app: App, folder: str) -> list[str]:
    out = ["--record", f"{folder}/calls.rbrec", "--yes"]
    return [sys.executable, "-c", MAIN, "calls", str(app.pid), *out]


def _chosen(app: App, folder: str) -> dict[str, list[str]]:
    words = [sys.executable, "-c", MAIN, "latency", str(app.pid), "method"]
    return {NOTHING: [], TEN: words + [each for one in METHODS for each in ("-m", one)]}


def _peers(app: App, folder: str) -> dict[str, list[str]]:
    """Return the other tools, which trace every method, including C functions."""
    peer = [sys.executable, str(HERE / "peers.py"), str(app.pid)]
    return {NOTHING: [], **{name: [*peer, name] for name in ("ruby-prof", "rbtrace")}}


@contextmanager
def tool(words: list[str]) -> Iterator[int | None]:
    """Run a tool during the block. Yield its PID, or None without a tool."""
    if not words:
        yield None
        return
    read, write = os.pipe()
    process = subprocess.Popen(
        [*_pinned(False), *words],
        pass_fds=(write,),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tracer"),
            "RBTRACE_READY_FD": str(write),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as ready:
        if words[0] == sys.executable:
            assert ready.readline() == "attached\n", words
        else:
            time.sleep(SETTLE)
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _measure(app: App, tool: int | None, seconds: int) -> Run:
    before = cpu(app.pid), None if tool is None else Spent.of(tool)
    rate, p99_ms, requests = load(app, seconds)
    used, spent = cpu(app.pid) - before[0], Spent(0, 0)
    if tool is not None and before[1] is not None:
        spent = Spent.of(tool).since(before[1]).by(seconds)
    app_us = 1e6 * used / requests if requests else math.inf
    return Run(rate, p99_ms, app_us, spent, used / seconds)


def cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used, in user and in system mode."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def load(app: App, seconds: int) -> tuple[float, float, int]:
    """Return the requests per second, the p99 of their latency in ms, and their
    number."""
    words = [*_pinned(False), "wrk", "-t1", "-c3", f"-d{seconds}", "--latency", app.url]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in out, out
    found = re.search(
        r"99% +([\d.]+)(us|ms|s)\s.*?(\d+) requests in.*?Requests/sec: +([\d.]+)",
        out,
        re.S,
    )
    assert found, out
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]
    return float(found[4]), float(found[1]) * scale, int(found[3])


def _cpu_row(
    name: str, against: str, runs: dict[str, list[Run]], goal: str = ""
) -> Row:
    ours, base = ([run.app_us for run in runs[one]] for one in (name, against))
    measured = f"{median(ours) / 1000:.2f} ms CPU a request"
    if name == NOTHING:
        return Row(name, measured)
    measured += f", tool {_percent(name, runs)} of a CPU"
    return Row(name, measured, against, Ratio.of(ours, base), goal)


def _percent(name: str, runs: dict[str, list[Run]]) -> str:
    """Return a tool's percentage of a CPU, and its BPF programs' part of it."""
    whole = [run.tool.both / 1e7 for run in runs[name]]
    bpf = median(run.tool.bpf for run in runs[name]) / 1e7
    return f"{middle(whole)} %" + (f" (BPF {bpf:.2f} %)" if bpf else "")


def _cost_rows(runs: dict[str, list[Run]]) -> Iterator[Row]:
    for name, other, goal in SAMPLERS:
        if other in runs:
            ours, theirs = ([run.tool.both for run in runs[x]] for x in (name, other))
            yield Row(f"CPU of {name}", "", other, Ratio.of(ours, theirs), goal)


def _row(name: str, runs: dict[str, list[Run]]) -> Row:
    ours, base = runs[name], runs[NOTHING]
    texts = [
        f"{median(run.rate for run in ours):.0f}/s",
        f"p99 {middle([run.p99_ms for run in ours], '.0f')} ms",
        f"{median(run.app_us for run in ours) / 1000:.2f} ms CPU a request,"
        f" {100 * median(run.busy for run in ours):.0f} % of a CPU",
    ]
    if name == NOTHING:
        return Row(name, ", ".join(texts))
    texts.append(f"tool {_percent(name, runs)} of a CPU")
    ratio = Ratio.of([run.rate for run in ours], [run.rate for run in base])
    return Row(name, ", ".join(texts), "throughput", ratio)
