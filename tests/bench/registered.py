"""The cost of the gem's spans to a Rails request, registered only and traced.

One process without a server alternates between serving with and without the spans, each
for a tenth of a second, so that both are slowed down alike. CPU time is measured
for the serving thread, without collections. The number of objects shows their cost.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean, median, stdev

from realapp import MAIN, has_libraries, tool
from table import Row

from targets import HERE, Target

LIBRARIES = ("rails", "sqlite3", "sidekiq", "redis", "puma")
PACKAGES = "ruby-rails, ruby-sqlite3, ruby-sidekiq, ruby-redis and puma"
REGISTERED, TRACED = "all spans, nobody traces", "latency PID rack:request"
GOALS = {REGISTERED: "≤ +1 %", TRACED: "≤ +2 %"}
PAIRS = 40
"""Measurements per process, each with and without the spans."""
HALF_WIDTH = 0.5
"""Half width of the 95 % interval, in percent, at which rounds stop."""


@dataclass(frozen=True)
class Round:
    """The result of one process.

    ``without_ns`` is the CPU of a request, and ``percent`` is the addition by the
    spans. ``objects`` are the additional objects per request.
    """

    without_ns: float
    percent: float
    objects: int


def cost(least: int, most: int) -> list[Row]:
    """Measure differences of CPU per request, until the interval is narrow."""
    if not has_libraries(*LIBRARIES):
        return [Row("a Rails request", f"not measured: install {PACKAGES}")]
    rounds: dict[str, list[Round]] = {name: [] for name in GOALS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP_DATABASE"] = str(Path(folder) / "shop.sqlite3")
        for number in range(most):
            if number >= least and all(map(_narrow, rounds.values())):
                break
            for name, found in rounds.items():
                found.append(_round(name))
    return [_row(name, found) for name, found in rounds.items()]


def _round(name: str) -> Round:
    with _application() as application, _tracer(name, application):
        cpu: dict[str, list[float]] = {"with": [], "without": []}
        objects = {}
        for number in range(PAIRS):
            for spans in ("without", "with") if number % 2 else ("with", "without"):
                application.ask(spans)
                cpu[spans].append(float(application.ask("cpu")))
                objects[spans] = int(application.ask("objects"))
    pairs = zip(cpu["with"], cpu["without"], strict=True)
    return Round(
        median(cpu["without"]),
        100 * median(with_ns / without_ns - 1 for with_ns, without_ns in pairs),
        objects["with"] - objects["without"],
    )


@contextmanager
def _application() -> Iterator[Target]:
    with closing(Target("ruby", str(HERE / "ruby" / "registered.rb"))) as target:
        with suppress(PermissionError):
            os.sched_setscheduler(target.pid, os.SCHED_RR, os.sched_param(1))
        yield target


def _tracer(name: str, application: Target) -> AbstractContextManager[object]:
    if name == REGISTERED:
        return nullcontext()
    pid = str(application.pid)
    return tool([sys.executable, "-c", MAIN, "latency", pid, "rack:request"])


def _row(name: str, rounds: Sequence[Round]) -> Row:
    percents = [one.percent for one in rounds]
    width = _half_width(percents)
    wide = "" if width <= HALF_WIDTH else f", wider than {HALF_WIDTH}"
    measured = f"{mean(percents):+.2f} % ± {width:.2f} ({len(rounds)} rounds{wide})"
    return Row(
        name,
        f"{measured}, {median(one.objects for one in rounds):+.0f} objects",
        f"without spans {median(one.without_ns for one in rounds) / 1e6:.2f} ms",
        goal=GOALS[name],
    )


def _half_width(percents: Sequence[float]) -> float:
    """Return the half width of the 95 % interval of the mean, by Student's t in its
    expansion for large counts."""
    count = len(percents)
    z = NormalDist().inv_cdf(0.975)
    t = z + (z**3 + z) / (4 * (count - 1))
    return t * stdev(percents) / math.sqrt(count)


def _narrow(rounds: Sequence[Round]) -> bool:
    return _half_width([one.percent for one in rounds]) <= HALF_WIDTH
