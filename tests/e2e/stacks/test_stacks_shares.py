"""Shares of CPU as ``stacks`` finds them, against what the target itself measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from commands import Tracer
from processes import TARGETS, Target
from rubies import EACH, ruby

pytestmark = pytest.mark.alone

SOURCE = str(TARGETS / "stacks/shares.rb")
METHODS = ("half", "third", "fifth")
SECONDS = 8
RATE = 499
TRACE = Callable[..., Tracer]


def has_stackprof() -> bool:
    """Debian's ruby-stackprof, for Debian's Ruby."""
    command = ["ruby", "-e", "require 'stackprof'"]
    return subprocess.run(command, capture_output=True).returncode == 0


def in_percent(weights: dict[str, int]) -> dict[str, float]:
    whole = sum(weights.values())
    return {name: 100 * weight / whole for name, weight in weights.items()}


def sampled(trace: TRACE, target: Target) -> tuple[dict[str, float], dict[str, Any]]:
    """Percent of each method's stacks, and what the target says it burned."""
    pid = target.ready.split()[1]
    tracer = trace("stacks", pid, "-r", RATE)
    answer: dict[str, Any] = json.loads(target.step(f"go {SECONDS}"))
    out, err, code = tracer.finish()
    assert code == 0, err
    found = dict.fromkeys(METHODS, 0)
    for line in out.splitlines():
        stack, weight = line.rsplit(" ", 1)
        inside = [name for name in METHODS if f";Shares#{name} " in stack]
        for name in inside:
            found[name] += int(weight)
    # Nearly nothing else is in no method but reading the CPU clock: there the kernel
    # notices that a time slice is over, so a thread waits there if others want the CPU.
    whole = sum(
        int(line.rsplit(" ", 1)[1])
        for line in out.splitlines()
        if "Process.clock_gettime " not in line
    )
    assert sum(found.values()) > 0.95 * whole
    assert sum(found.values()) > 0.5 * SECONDS * RATE
    return in_percent(found), answer


@pytest.mark.parametrize("name", EACH)
def test_shares_are_as_burned(name: str, trace: TRACE) -> None:
    target = Target(*ruby(name), SOURCE)
    try:
        found, burned = sampled(trace, target)
    finally:
        target.close()
    for name, share in in_percent(burned).items():
        assert found[name] == pytest.approx(share, abs=2), (found, burned)


def test_shares_are_as_stackprof_has_them(trace: TRACE) -> None:
    """Each of what its own process burned, which is never the same twice."""
    if not has_stackprof():
        pytest.skip("no stackprof for this Ruby (make setup-test installs it)")
    outside, inside = Target("ruby", SOURCE), Target("ruby", SOURCE, "stackprof")
    try:
        found, burned = sampled(trace, outside)
        answer = json.loads(inside.step(f"go {SECONDS}"))
    finally:
        outside.close()
        inside.close()
    theirs = {
        name.split("#")[1]: share
        for name, share in in_percent(answer.pop("stackprof")).items()
    }
    ours_off, theirs_off = (
        {name: shares[name] - share for name, share in in_percent(own).items()}
        for shares, own in ((found, burned), (theirs, answer))
    )
    for name in METHODS:
        assert abs(ours_off[name]) <= 2, (ours_off, theirs_off)
        assert abs(theirs_off[name]) <= 3, (ours_off, theirs_off)
        assert abs(ours_off[name] - theirs_off[name]) <= 3, (ours_off, theirs_off)
