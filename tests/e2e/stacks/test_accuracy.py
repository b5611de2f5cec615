"""Shares and times against the program's own clocks: a short version of
``scripts/bench.sh --only accuracy``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from accuracy_cells import Settings, compare, parse_document
from commands import Tracer
from processes import TARGETS, Target, is_soak

CLOCKED = TARGETS / "stacks" / "clocked.rb"
RATE = 499
SECONDS = 20 if is_soak() else 3
SLACK = 1.6
"""Errors may be 1.6 times as large as in the table, that is 8 standard errors."""
MODES = ("cpu", "wall")

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("root")]


@pytest.mark.parametrize("engine", ["bpf", "memory"])
@pytest.mark.parametrize("program", ["ruby", "sleeps", "runs-2-3", "threads"])
def test_shares_and_totals(
    program: str, engine: str, trace: Callable[..., Tracer]
) -> None:
    """Both modes sample the same run."""
    with closing(Target("ruby", CLOCKED)) as target:
        pid = target.ready.split()[1]
        target.step(f"prepare {program}")
        words = ("stacks", pid, "--engine", engine, "-r", RATE, "--format", "json")
        tracers = {mode: trace(*words, "--mode", mode) for mode in MODES}
        truth = json.loads(target.step(f"go {program} {SECONDS}"))
        found = {mode: tracer.finish() for mode, tracer in tracers.items()}
    for mode, (out, err, code) in found.items():
        assert code == 0, err
        check(truth, json.loads(out), Settings(engine, mode, RATE))


def check(truth: Any, document: Any, settings: Settings) -> None:
    cell = compare(truth, parse_document(document), settings, "alone", "", SECONDS)
    off = [share for share in cell.shares if abs(share.error) > SLACK * share.bound]
    assert not off, (settings, off, cell.delay)
    assert cell.not_sampled <= 2
    # In mode wall, the memory engine takes a thread that waits for a CPU for a running
    # one, and a share of elapsed time has the error of its samples.
    if settings.engine == "bpf" or settings.mode == "cpu":
        assert abs(cell.totals["running"]) <= 2, (settings, cell.totals, cell.delay)
    if settings.engine == "bpf" and settings.mode == "wall":
        assert abs(cell.totals["waiting"]) <= 2, (settings, cell.totals, cell.delay)
