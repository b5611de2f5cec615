"""Shares and totals that ``stacks`` prints, compared with the program's own clocks.

    python tests/bench/accuracy.py [--quick] [--program NAME]... [--engine NAME]...

Each option selects cells of the table; without options all are measured. As part of
tests/bench/run.py the options come from RBTRACE_ACCURACY.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tracer"))

from table import Row, text

import rubies
import ruby_builds
from accuracy_cells import (
    Cell,
    Profile,
    Settings,
    compare,
    parse_collapsed,
    parse_document,
)
from processes import MAIN, ROOT, TARGETS, Target, comes_true, read_line

PROGRAMS = (
    *("ruby", "c", "sleeps", "mix", "threads"),
    *(f"runs-{run}-{wait}" for run in ("0.2", "2", "20") for wait in ("0.5", "3")),
    *("calls-0.1", "calls-1", "calls-10"),
)
LOADS = {"alone": 0, "busy": 2}
"""Numbers of processes that keep a CPU busy meanwhile."""
RUBIES = ("3.1", "4.0-yjit")
ENGINES, MODES, RATES = (
    ("bpf", "memory", "rbspy"),
    ("cpu", "wall"),
    (99, 250, 499, 1000),
)
SECONDS, QUICK_SECONDS = 20, 5
START = 60
"""Seconds that a program may take to start, or to measure its short calls."""


@dataclass(frozen=True)
class Selection:
    """Cells to measure."""

    programs: Sequence[str]
    loads: Sequence[str]
    rubies: Sequence[str]
    engines: Sequence[str]
    modes: Sequence[str]
    rates: Sequence[int]
    seconds: int
    rounds: int
    cells: Path | None

    def groups(self) -> Iterator[list[Settings]]:
        """Yield the settings that sample the same run.

        BPF programs take microseconds, so that all share one run. The memory engine
        takes a CPU's time at 1000 Hz, and rbspy pauses the program.
        """
        chosen = [Settings(*s) for s in product(self.engines, self.modes, self.rates)]
        yield [s for s in chosen if s.engine == "bpf"]
        for mode in self.modes:
            ours = [s for s in chosen if (s.engine, s.mode) == ("memory", mode)]
            yield [s for s in ours if s.rate < RATES[-1]]
            yield [s for s in ours if s.rate >= RATES[-1]]
        if find_rbspy():
            yield from ([s] for s in chosen if (s.engine, s.mode) == ("rbspy", "cpu"))


def find_rbspy() -> str | None:
    """Return RBSPY=…, or the rbspy on the PATH or installed by cargo."""
    cargo = str(Path.home() / ".cargo" / "bin")
    found = os.environ.get("RBSPY") or shutil.which("rbspy")
    return found or shutil.which("rbspy", path=cargo)


def table(quick: bool) -> list[Row]:
    """Rows of the cells that RBTRACE_ACCURACY selects, and a row that counts them."""
    words = shlex.split(os.environ.get("RBTRACE_ACCURACY", ""))
    selection = parse([*words, *(["--quick"] if quick else [])])
    cells = list(measure(selection))
    return [*map(row, cells), summary(cells)]


def measure(selection: Selection) -> Iterator[Cell]:
    """Yield each cell once it is measured, and append it to the file of cells."""
    # Shells ignore Ctrl-C for background jobs, and profilers would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, load in product(selection.rubies, selection.loads):
        words = ruby_words(name)
        if words is None:
            print(f"no Ruby {name}", file=sys.stderr)
            continue
        with busy(LOADS[load]), clocked(words) as target:
            for program, _ in product(selection.programs, range(selection.rounds)):
                for group in filter(None, selection.groups()):
                    for cell in run(target, program, group, load, name, selection):
                        keep(cell, selection.cells)
                        yield cell


def keep(cell: Cell, path: Path | None) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(cell.plain()) + "\n")


def ruby_words(name: str) -> list[str] | None:
    """Return the words that run a Ruby, as 4.0-yjit; None if it is missing."""
    version, _, jit = name.partition("-")
    options = [f"--{jit}"] if jit else []
    if rubies.minor(rubies.HERE) == version:
        return ["ruby", *options]
    for archive in ruby_builds.ARCHIVES:
        program = rubies.DIRECTORY / archive / "bin" / "ruby"
        if archive.startswith(version) and program.exists():
            return [str(program), *options]
    if (rubies.DIRECTORY / version / "usr" / "bin" / "ruby").exists():
        return [str(rubies.SCRIPT), "run", version, "ruby", *options]
    return None


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run processes that keep a CPU busy, each in a new session."""
    words = ["sh", "-c", "while :; do :; done"]
    started = [subprocess.Popen(words, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def clocked(words: Sequence[str]) -> Iterator[Target]:
    target = Target(*words, str(TARGETS / "stacks/clocked.rb"))
    try:
        yield target
    finally:
        target.close()


def run(
    target: Target,
    program: str,
    group: Sequence[Settings],
    load: str,
    ruby: str,
    selection: Selection,
) -> Iterator[Cell]:
    """Run a program once below all profilers of a group; yield their cells."""
    seconds = selection.seconds
    ask(target, f"prepare {program}", START)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(index) for index in range(len(group))]
        with profilers(int(target.ready.split()[1]), group, files):
            truth = ask(target, f"go {program} {seconds}", seconds + START)
        for settings, file in zip(group, files, strict=True):
            found = read(settings, file)
            yield compare(truth, found, settings, load, ruby, seconds)


def ask(target: Target, line: str, timeout: float) -> Any:
    target.tell(line)
    answer = read_line(target.process.stdout, timeout)
    assert answer, f"the program ended at {line!r}"
    return json.loads(answer)


@contextmanager
def profilers(
    pid: int, group: Sequence[Settings], files: Sequence[Path]
) -> Iterator[None]:
    """Attach all profilers; after the block end them as Ctrl-C does."""
    with ExitStack() as stack:
        started = [start(pid, *pair) for pair in zip(group, files, strict=True)]
        for process, _ in started:
            stack.callback(finish, process)
        try:
            for settings, file, (process, ready) in zip(
                group, files, started, strict=True
            ):
                with ready:
                    await_attached(settings, file, process, ready)
            yield
        finally:
            for process, _ in started:
                process.send_signal(signal.SIGINT)


def await_attached(
    settings: Settings, file: Path, process: subprocess.Popen[str], ready: Any
) -> None:
    """Wait until a profiler is attached. rbspy then begins to write its raw file."""
    if settings.engine == "rbspy":
        assert comes_true(raw_file(file).exists, START), settings
    elif read_line(ready, START) != "attached":
        raise AssertionError(f"{settings}: {process.communicate()[1]}")


def start(
    pid: int, settings: Settings, file: Path
) -> tuple[subprocess.Popen[str], Any]:
    """Start a profiler; return it and the stream of its "attached"."""
    read, write = os.pipe()
    process = subprocess.Popen(
        words_of(pid, settings, file),
        pass_fds=(write,),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tracer"),
            "RBTRACE_READY_FD": str(write),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    return process, os.fdopen(read, "rb", buffering=0)


def words_of(pid: int, settings: Settings, file: Path) -> list[str]:
    engine, mode, rate = map(str, settings)
    if engine == "rbspy":
        words = [str(find_rbspy()), "record", "--pid", str(pid), "--rate", rate]
        words += ["--silent", "--format", "collapsed", "--file", str(file)]
        return [*words, "--raw-file", str(raw_file(file))]
    words = [sys.executable, "-c", MAIN, "stacks", str(pid), "--mode", mode]
    words += ["--engine", engine, "-r", rate, "--max-loss", "100"]
    return [*words, "--format", "json", "-o", str(file)]


def raw_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.raw.gz")


def finish(process: subprocess.Popen[str]) -> None:
    """Await the end of a profiler; kill it if it does not end."""
    try:
        process.communicate(timeout=START)
    finally:
        process.kill()
        process.wait()


def read(settings: Settings, file: Path) -> Profile:
    content = file.read_text()
    if settings.engine == "rbspy":
        return parse_collapsed(content, settings.rate)
    return parse_document(json.loads(content))


def row(cell: Cell) -> Row:
    """Return the table's row of a cell."""
    worst, failures = cell.worst, cell.failures()
    totals = ", ".join(f"{name} {error:+.1f} %" for name, error in cell.totals.items())
    return Row(
        f"{cell.program}, {cell.load}, {cell.ruby}, {cell.settings}",
        f"{worst.error:+.1f} of ±{worst.bound:.1f} {worst.kind} {worst.method},"
        f" mean {cell.mean:.2f}",
        f"{totals}; not sampled {cell.not_sampled:.1f} %, changed {cell.changed:.1f} %;"
        f" waited for a CPU {cell.delay:.1f} %",
        goal=f"FAILS: {', '.join(failures[:3])}" if failures else "holds",
    )


def summary(cells: Sequence[Cell]) -> Row:
    held = sum(not cell.failures() for cell in cells)
    return Row("cells that hold", f"{held} of {len(cells)}", goal="all")


def parse(words: Sequence[str] | None = None) -> Selection:
    """Return the selection of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, known in (
        *(("program", PROGRAMS), ("load", tuple(LOADS)), ("engine", ENGINES)),
        ("mode", MODES),
    ):
        parser.add_argument(f"--{name}", action="append", choices=known)
    parser.add_argument("--ruby", action="append", help="a Ruby, as 3.1 or 4.0-yjit")
    parser.add_argument("--rate", action="append", type=int, help="samples per second")
    parser.add_argument("--seconds", type=int, help="wall time of each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each cell")
    parser.add_argument(
        "--cells", type=Path, help="append cells to FILE, as JSON lines"
    )
    parser.add_argument("--quick", action="store_true", help="5 s, Ruby 3.1, two rates")
    given = parser.parse_args(words)
    quick = given.quick
    return Selection(
        given.program or PROGRAMS,
        given.load or tuple(LOADS),
        given.ruby or RUBIES[: 1 if quick else None],
        given.engine or ENGINES,
        given.mode or MODES,
        given.rate or (RATES[:: len(RATES) - 1] if quick else RATES),
        given.seconds or (QUICK_SECONDS if quick else SECONDS),
        given.rounds,
        given.cells,
    )


def main() -> None:
    """Print each row once it is measured; then the whole table."""
    cells = []
    for cell in measure(parse()):
        cells.append(cell)
        shown = row(cell)
        parts = (shown.what, shown.measured, shown.baseline, shown.goal)
        print("; ".join(parts), flush=True)
    print(text("\nAccuracy", [*map(row, cells), summary(cells)]))


if __name__ == "__main__":
    main()
