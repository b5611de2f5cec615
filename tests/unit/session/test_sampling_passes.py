"""Sampling passes as a session: how far ``advance`` runs."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.stacks import RubyThread, Sample, Stack, ThreadState
from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.stacks.sampling_options import SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import KernelPasses, SamplingPasses

ENDED = 1 << 22
THREADS = [RubyThread(ENDED, tid, tid, "") for tid in (10, 11)]


class TwoThreads:
    """A sampling in which each pass has two samples of a process that has ended."""

    options = SamplingOptions(rate=1000, mode=SamplingMode.CPU)
    rubies = ()

    def __init__(self) -> None:
        self.statistics = Statistics()

    def sample(self, add: Add) -> None:
        for thread in THREADS:
            now = time.time_ns()
            add(Sample(now, thread, ThreadState.RUNNING, Stack(())))

    def refresh(self) -> None:
        """No process comes or goes."""


def passes(sampling: TwoThreads, taken: list[Sample]) -> SamplingPasses:
    return SamplingPasses(cast(Sampling, sampling), taken.append)


def test_a_pass_is_whole_where_it_has_enough() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    session = passes(sampling, taken)
    session.advance(time.monotonic() + 60, 3)
    assert session.seen == 4
    assert sampling.statistics.rounds == 2
    assert sampling.statistics.ended_ns > 0
    session.finish()
    # The threads' run times are unknown, so each sample weighs a period.
    assert [(one.thread.tid, one.weight) for one in taken] == [
        (10, 1_000_000),
        (11, 1_000_000),
    ] * 2


def test_no_pass_comes_after_the_time_it_is_given() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    session = passes(sampling, taken)
    session.advance(time.monotonic(), None)
    session.finish()
    assert taken == []


def test_a_pass_shortly_before_its_time_is_the_last() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    until = time.monotonic() + 0.01
    session = passes(sampling, taken)
    session.advance(until, None)
    session.finish()
    # On a busy machine, the time may be over before the first sample.
    assert len(taken) <= 2


class HalfAsleep(TwoThreads):
    """The same in wall mode. The second thread sleeps."""

    options = SamplingOptions(rate=1000, mode=SamplingMode.WALL, idle=False)

    def sample(self, add: Add) -> None:
        states = (ThreadState.RUNNING, ThreadState.SLEEPING)
        for thread, state in zip(THREADS, states, strict=True):
            add(Sample(time.time_ns(), thread, state, Stack(())))


def test_threads_that_sleep_are_left_out_and_not_counted() -> None:
    sampling, taken = HalfAsleep(), list[Sample]()
    session = passes(sampling, taken)
    session.advance(time.monotonic() + 60, 3)
    assert session.seen == 3
    session.finish()
    assert [one.thread.tid for one in taken] == [10] * 3


class Flooded:
    """A kernel that forever has more stacks than can be named."""

    seen = 0
    is_changing = False

    def __init__(self) -> None:
        self.collected, self.taken = 0, 0

    def collect(self, add: Add, most: int | None) -> bool:
        assert most
        self.collected += 1
        return True

    def settle(self, add: Add) -> None:
        self.taken += 1

    def wait(self, seconds: float) -> None:
        assert not self.collected, "there is something to read"


def test_the_time_is_kept_where_names_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Collecting all arrived stacks is postponed, but not forever."""
    sampling = cast(Sampling, SimpleNamespace(rubies=[], events=None))
    kernel, now = Flooded(), [100.0]

    def clock() -> float:
        now[0] += 0.125
        return now[0]

    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    session = KernelPasses(sampling, cast(KernelStacks, kernel), [].append)
    session.advance(105, None)
    assert 105 <= now[0] < 106
    assert (kernel.collected > 10, kernel.taken) == (True, 0)
    session.advance(112, None)
    assert kernel.taken == 1
