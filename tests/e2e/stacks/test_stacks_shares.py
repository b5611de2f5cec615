"""Shares of CPU time in ``stacks``, compared with the target's own measurements."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from commands import Tracer, below
from processes import TARGETS, Target, is_soak, margin
from rubies import EACH, ruby

pytestmark = pytest.mark.alone

SOURCE = str(TARGETS / "stacks/shares.rb")
METHODS = ("half", "third", "fifth")
SECONDS, STACKPROF_SECONDS = (4, 8) if is_soak() else (2, 4)
"""Seconds of CPU per turn. stackprof takes at most one sample per tick of the
kernel."""
TURNS, LEAST = (6, 10_000) if is_soak() else (1, 750)
"""Turns of each target, and the minimum number of samples in each profile."""
RATE = 999
ENGINES = ("bpf", "memory")
TRACE = Callable[..., Tracer]


def has_stackprof() -> bool:
    """Return whether Debian's ruby-stackprof is installed for Debian's Ruby."""
    command = ["ruby", "-e", "require 'stackprof'"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Profile(NamedTuple):
    """The weight and the CPU time of each method in ns, and the number of samples."""

    found: dict[str, int]
    burned: dict[str, int]
    samples: int


def in_percent(weights: dict[str, int]) -> dict[str, float]:
    whole = sum(weights.values())
    return {name: 100 * weight / whole for name, weight in weights.items()}


def off(profile: Profile) -> dict[str, float]:
    """Return by how many points each method's share differs from its CPU time."""
    found, burned = in_percent(profile.found), in_percent(profile.burned)
    return {name: found[name] - burned[name] for name in METHODS}


def sampled(trace: TRACE, target: Target, engine: str = "auto") -> Profile:
    pid = target.ready.split()[1]
    words = ("-r", RATE, "--engine", engine, "--format", "json")
    tracer = trace("stacks", pid, *words)
    burned, _ = burn(target)
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    found = {name: below(document, f"Shares#{name}") for name in METHODS}
    # Nearly nothing else is in no method but reading the CPU clock: there the kernel
    # notices that a time slice is over, so a thread waits there if others want the CPU.
    whole = document["weight"] - below(document, "Process.clock_gettime")
    assert sum(found.values()) > 0.95 * whole
    assert document["weight"] == pytest.approx(sum(burned.values()), rel=0.02)
    samples = document["counters"]["samples"]
    assert samples > LEAST
    return Profile(found, burned, samples)


def burn(
    target: Target, seconds: int = SECONDS
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the CPU time of the target's turns in ns, and the count of stackprof."""
    burned, counts = Counter[str](), Counter[str]()
    for _ in range(TURNS):
        answer = json.loads(target.step(f"go {seconds}"))
        counts.update(answer.pop("stackprof", {}))
        burned.update(answer)
    return burned, counts


@pytest.mark.parametrize("name", EACH)
def test_shares_are_as_burned(name: str, trace: TRACE) -> None:
    target = Target(*ruby(name), SOURCE)
    try:
        profile = sampled(trace, target)
    finally:
        target.close()
    most = margin(profile.samples, 2)
    assert max(map(abs, off(profile).values())) <= most, profile


def by_stackprof() -> Profile:
    """Profile as ``sampled`` does, with stackprof inside the target's process."""
    target = Target("ruby", SOURCE, "stackprof")
    try:
        burned, counts = burn(target, STACKPROF_SECONDS)
    finally:
        target.close()
    found = {name.split("#")[1]: count for name, count in counts.items()}
    samples = sum(found.values())
    assert samples > LEAST
    return Profile(found, burned, samples)


def by_engine(trace: TRACE, engine: str) -> Profile:
    target = Target("ruby", SOURCE)
    try:
        return sampled(trace, target, engine)
    finally:
        target.close()


@pytest.mark.slow
def test_engines_and_stackprof_agree(trace: TRACE, root: None) -> None:
    """Each is compared with its own process's CPU time, which differs between runs."""
    profiles = {engine: by_engine(trace, engine) for engine in ENGINES}
    assert_close(profiles)
    if not has_stackprof():
        pytest.skip("the engines agree; stackprof is built for Debian's Ruby alone")
    assert_close({**profiles, "stackprof": by_stackprof()})


def assert_close(profiles: dict[str, Profile]) -> None:
    samples = min(profile.samples for profile in profiles.values())
    differ = {profiler: off(profile) for profiler, profile in profiles.items()}
    for name in METHODS:
        ours = [differ[engine][name] for engine in ENGINES]
        every = [differ[profiler][name] for profiler in profiles]
        assert max(map(abs, ours)) <= margin(samples, 2), differ
        assert max(map(abs, every)) <= margin(samples, 3), differ
        assert max(every) - min(every) <= margin(samples, 3), differ
