"""Comparison of a profile with the clocks of the profiled program.

A program's answer (tests/targets/stacks/clocked.rb) is the truth. A profile is the
result of ``stacks --format json`` or rbspy for the same time. Both are reduced to the
CPU and waiting time of each method of each thread, and compared as shares and as
totals.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

POINTS = 2.0
"""Largest error of a share, where ticks suffice."""
LEAF_POINTS = 3.0
"""Largest error of a share of calls under 10 µs, read from memory."""
STANDARD_ERRORS = 5
TOTAL = 1.0
"""Largest error of a total in percent, and largest share that is not sampled."""
MEAN_POINTS, MEAN_RATE, MEAN_METHODS, MEAN_SECONDS = 0.5, 1000, 10, 20
"""Largest mean error, and the rate, number of methods, and time for which it holds."""
LEAST_WAIT = 0.01
"""Part of wall time below which the shares of waits are not compared."""
NOT_SAMPLED, CHANGED = "(running, not sampled)", "(changed while read)"
ON_CPU = (NOT_SAMPLED, CHANGED)
"""Markers of time on a CPU; every other marker names a wait."""
WINDOW = "Job#rounds"
"""The method that runs while a program is measured."""
CLOCKS = ("wall_ns", "cpu_ns", "run_ns", "delay_ns")
SHORT_CALLS = ("calls-0.1", "calls-1")


class Settings(NamedTuple):
    """Settings of a profiler: ``rbspy`` as engine is the other profiler."""

    engine: str
    mode: str
    rate: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.mode}, {self.rate} Hz"


Times = defaultdict[str, float]


def _times() -> Times:
    return defaultdict(float)


@dataclass
class ThreadProfile:
    """Times of one thread, in ns."""

    running: float = 0
    waiting: float = 0
    totals: Times = field(default_factory=_times)
    selves: Times = field(default_factory=_times)
    waits: Times = field(default_factory=_times)
    markers: Times = field(default_factory=_times)


Profile = dict[int | None, ThreadProfile]
"""Threads by the kernel's id; None if the profiler does not tell threads apart."""


def parse_document(document: Any) -> Profile:
    """Return the profile of ``stacks --format json`` (docs/formats/stacks.md)."""
    scale = 1.0 if document["unit"] == "ns" else 1e9 / document["rate"]
    frames, threads = document["frames"], document["threads"]
    profile: Profile = {}
    for row in document["stacks"]:
        thread = profile.setdefault(threads[row["thread"]]["tid"], ThreadProfile())
        stack = [frames[index] for index in row["frames"]]
        _add(thread, stack, row["state"], row["weight"] * scale)
    return profile


def _add(thread: ThreadProfile, stack: list[Any], state: str, weight: float) -> None:
    names = {frame["name"] for frame in stack}
    leaf = stack[-1] if stack else {"name": "", "kind": ""}
    marker = leaf["name"] if leaf["kind"] == "marker" else ""
    is_wait = bool(marker) and marker not in ON_CPU
    if is_wait or state in ("sleeping", "waiting"):
        if WINDOW in names:
            thread.waiting += weight
            _add_to_each(thread.waits, names, weight)
        return
    thread.running += weight
    _add_to_each(thread.totals, names, weight)
    thread.selves[leaf["name"]] += weight
    if marker in ON_CPU:
        thread.markers[marker] += weight


def _add_to_each(times: Times, names: set[str], weight: float) -> None:
    for name in names:
        times[name] += weight


def parse_collapsed(text: str, rate: int) -> Profile:
    """Return the profile of rbspy's collapsed stacks, with bare names of methods."""
    thread = ThreadProfile()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        names = [bare(frame.split(" - ")[0]) for frame in stack.split(";")]
        if bare(WINDOW) in names:
            weight = int(count) * 1e9 / rate
            thread.running += weight
            _add_to_each(thread.totals, set(names), weight)
            thread.selves[names[-1]] += weight
    return {None: thread}


def bare(name: str) -> str:
    """Return a method's name without its class, and without rbspy's "[c function]"."""
    words = name.replace("[c function]", "").strip()
    return words.rpartition("#")[2].rpartition(".")[2] or words


@dataclass(frozen=True)
class Share:
    """A method's share of its thread's time, in percent.

    Attributes:
        kind: ``running``, ``waiting``, or ``self`` (on a CPU, innermost).
        low, high: Ends of the truth. The cost of a call may be the caller's or the
            method's, which matters for calls under 10 µs.
        bound: Largest error that holds, in points.
        one_sided: True if a share that is too small holds.
    """

    thread: str
    method: str
    kind: str
    low: float
    high: float
    found: float
    bound: float
    one_sided: bool = False

    @property
    def error(self) -> float:
        return self.found - min(max(self.found, self.low), self.high)

    @property
    def holds(self) -> bool:
        error = max(self.error, 0) if self.one_sided else abs(self.error)
        return error <= self.bound


@dataclass(frozen=True)
class Cell:
    """One cell of the table: a program, how it ran, how it was sampled, and errors.

    Attributes:
        shares: Each method of each thread.
        totals: By ``running`` and ``waiting``: error of the total in percent.
        not_sampled, changed: Percent of running time below these markers.
        rest: Percent of CPU time outside of measured methods, by the clocks.
        delay: Percent of wall time for which the threads waited for a CPU. Alone it
            says how much else the machine did.
        clocks: Wall, CPU, run, and run-queue time of each thread, in ns.
    """

    program: str
    load: str
    ruby: str
    settings: Settings
    seconds: float
    shares: list[Share]
    totals: dict[str, float]
    not_sampled: float
    changed: float
    rest: float
    delay: float
    clocks: list[dict[str, int]]

    @property
    def delay_of_run(self) -> float:
        """Time for which the threads waited for a CPU, in percent of their run time."""
        return percent(
            *(sum(t[k] for t in self.clocks) for k in ("delay_ns", "run_ns"))
        )

    @property
    def mean(self) -> float:
        """Mean error of the shares of running time, in points."""
        errors = [abs(share.error) for share in self.shares if share.kind != "waiting"]
        return sum(errors) / len(errors)

    @property
    def worst(self) -> Share:
        """The share with the largest error in relation to its bound."""
        return max(self.shares, key=lambda share: abs(share.error) / share.bound)

    def failures(self) -> list[str]:
        """Return the requirements that this cell does not meet."""
        found = [f"{s.kind} {s.method}" for s in self.shares if not s.holds]
        found += [f"total {k}" for k, v in self.totals.items() if abs(v) > TOTAL]
        found += ["not sampled"] if self.not_sampled > TOTAL else []
        found += ["mean"] if self._has_ten() and self.mean > self._mean_bound() else []
        missing = sum(max(-s.error, 0) for s in self.shares if s.one_sided)
        found += ["changed"] if missing > self.changed + LEAF_POINTS else []
        return found

    def _has_ten(self) -> bool:
        methods = Counter(s.thread for s in self.shares if s.kind == "running")
        counts = set(methods.values())
        return self.settings.rate >= MEAN_RATE and counts == {MEAN_METHODS}

    def _mean_bound(self) -> float:
        return MEAN_POINTS * math.sqrt(max(1.0, MEAN_SECONDS / self.seconds))

    def plain(self) -> dict[str, Any]:
        """Return the cell as it is written to a file of cells."""
        worst = self.worst
        return {
            **asdict(self),
            "settings": self.settings._asdict(),
            "worst": {**asdict(worst), "error": worst.error},
            "mean": self.mean,
            "failures": self.failures(),
        }


def merged(truth: Any) -> Any:
    """Return the truth as rbspy sees it: one thread, and bare names of methods."""
    whole: dict[str, Any] = {"name": "all", "tid": None, "methods": {}}
    for thread in truth["threads"]:
        for key in CLOCKS:
            whole[key] = whole.get(key, 0) + thread[key]
        whole["self"] = thread.get("self", False)
        for name, times in thread["methods"].items():
            shown = times.get("caller") or bare(name)
            numbers = {key: times[key] for key in times if key != "caller"}
            whole["methods"].setdefault(shown, Counter()).update(numbers)
    return {**truth, "threads": [whole]}


def compare(
    truth: Any, profile: Profile, settings: Settings, load: str, ruby: str, seconds: int
) -> Cell:
    """Return the cell of a profile."""
    if settings.engine == "rbspy":
        truth = merged(truth)
    threads = truth["threads"]
    pairs = [(t, profile.get(t["tid"], ThreadProfile())) for t in threads]
    program = truth["program"]
    loose = settings.engine == "memory" and program in SHORT_CALLS
    running = sum(found.running for _, found in pairs) or 1.0
    not_sampled, changed = (
        percent(sum(found.markers[name] for _, found in pairs), running)
        for name in ON_CPU
    )
    measured = sum(m.get("cpu_ns", 0) for t in threads for m in t["methods"].values())
    return Cell(
        program,
        load,
        ruby,
        settings,
        seconds,
        [s for pair in pairs for s in _shares(*pair, settings, loose)],
        _totals(pairs, settings.mode),
        not_sampled,
        changed,
        rest=100 - percent(measured, sum(t["cpu_ns"] for t in threads)),
        delay=percent(*(sum(t[k] for t in threads) for k in ("delay_ns", "wall_ns"))),
        clocks=[{key: thread[key] for key in CLOCKS} for thread in threads],
    )


def _totals(pairs: Sequence[tuple[Any, ThreadProfile]], mode: str) -> dict[str, float]:
    """Errors in percent: of CPU time, and of waiting time in relation to wall time."""
    run = sum(thread["run_ns"] for thread, _ in pairs)
    running = sum(found.running for _, found in pairs)
    totals = {"running": 100 * (running - run) / run}
    if mode == "wall":
        wall = sum(thread["wall_ns"] for thread, _ in pairs)
        wait = wall - sum(thread["cpu_ns"] for thread, _ in pairs)
        waiting = sum(found.waiting for _, found in pairs)
        totals["waiting"] = 100 * (waiting - wait) / wall
    return totals


def _shares(
    thread: Any, found: ThreadProfile, settings: Settings, loose: bool
) -> Iterator[Share]:
    if thread.get("self"):
        yield from _self_shares(thread, found, settings, loose)
        return
    cpu, wall = thread["cpu_ns"], thread["wall_ns"]
    ticks = settings.rate / 1e9
    for name, times in thread["methods"].items():
        truth = percent(times["cpu_ns"], cpu)
        share = percent(found.totals[name], found.running)
        bound = bound_of(truth, cpu * ticks)
        yield Share(thread["name"], name, "running", truth, truth, share, bound)
        if settings.mode == "wall" and wall - cpu >= LEAST_WAIT * wall:
            truth = percent(max(times["wall_ns"] - times["cpu_ns"], 0), wall - cpu)
            share = percent(found.waits[name], found.waiting)
            bound = bound_of(truth, (wall - cpu) * ticks)
            yield Share(thread["name"], name, "waiting", truth, truth, share, bound)


def _self_shares(
    thread: Any, found: ThreadProfile, settings: Settings, loose: bool
) -> Iterator[Share]:
    """Self shares of short calls, and the total of the loop that calls them."""
    cpu = thread["cpu_ns"]
    ticks = cpu * settings.rate / 1e9
    least = LEAF_POINTS if loose else POINTS
    for name, times in thread["methods"].items():
        low, high = (percent(times[key], cpu) for key in ("low_ns", "high_ns"))
        share = percent(found.selves[name], found.running)
        bound = bound_of(high, ticks, least)
        yield Share(thread["name"], name, "self", low, high, share, bound, loose)
    caller = list(thread["methods"])[-1]
    share = percent(found.totals[caller], found.running)
    bound = bound_of(100.0, ticks, least)
    yield Share(thread["name"], caller, "total", 100.0, 100.0, share, bound)


def percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def bound_of(share: float, ticks: float, least: float = POINTS) -> float:
    """Return the largest error in points of a share that so many ticks can show."""
    part = min(max(share / 100, 0.0), 1.0)
    error = math.sqrt(part * (1 - part) / max(ticks, 1.0))
    return max(least, 100 * STANDARD_ERRORS * error)
