"""Shares of calls that are shorter than a read of their stack, compared with their
costs."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence

import pytest

import rubies
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.model.stacks import CHANGED
from rbtrace_py.session.stacks.sampling_passes import SampleTimer

SAMPLES = 4000
SIGMA = 100 * math.sqrt(0.25 / SAMPLES)
"""Points, of a share of one half."""
RATE = 2500


class LastGather(ProcessMemory):
    """A process's memory that keeps the result of the last gather."""

    last: list[bytes]

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.last = super().gather(ranges)
        return self.last


def shares(process: rubies.Running) -> Counter[str]:
    """Return each newest frame's percentage of samples at random times.

    A process that waits for a CPU does not change, so it is not counted again.
    """
    memory = LastGather(process.pid)
    vm = process.vm(memory)
    thread = vm.threads()[0]
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(process.pid, {cpus[-1]})  # the reader must not stop it
    os.sched_setaffinity(0, set(cpus[:-1]) or set(cpus))
    timer, forever = SampleTimer(RATE, Statistics()), 1 << 62
    found: Counter[str] = Counter()
    before: list[bytes] = []
    try:
        while found.total() < SAMPLES:
            assert timer.wait(forever)
            walked = vm.sample(thread)
            if memory.last == before:
                vm.counts.trimmed -= walked is not None and bool(walked.flags)
                continue
            before = memory.last
            assert walked is not None
            assert walked.stack.frames[0].name == "<main>"
            found[walked.stack.frames[-1].name] += 1
    finally:
        os.sched_setaffinity(0, cpus)
    assert vm.counts.trimmed == found[CHANGED.name]
    return Counter({name: 100 * count / SAMPLES for name, count in found.items()})


@pytest.mark.timeout(120)
def test_no_call_below_a_microsecond_gets_another_ones_time(root: None) -> None:
    """A call of ``long`` takes as much more than a call of ``short`` as its own code
    takes."""
    with rubies.running(rubies.HERE, "stacks/short_calls.rb", "0", "6") as process:
        short, long = map(float, process.ready.split()[1:])
        found = shares(process)
    own = 100 * (long - short) / (long + short)
    assert 20 < own < 60
    margin = 3 + 5 * SIGMA
    assert found["Work#long"] < own + margin
    assert found["Work#short"] < 8 + margin  # it has only a few instructions
    callers = found["block in Object#run"] + found["Array#each"]
    assert callers < 100 - own + margin


@pytest.mark.timeout(120)
def test_calls_from_10_microseconds_on_have_their_share(root: None) -> None:
    with rubies.running(
        rubies.HERE, "stacks/short_calls.rb", "2500", "4000"
    ) as process:
        short, long = map(float, process.ready.split()[1:])
        assert short > 10_000
        found = shares(process)
    own = 100 * long / (long + short)
    assert abs(found["Work#long"] - own) < 2 + 5 * SIGMA
    assert abs(found["Work#short"] - (100 - own)) < 2 + 5 * SIGMA
