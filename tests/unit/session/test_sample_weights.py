"""Weights of samples in cpu and wall mode."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from rbtrace_py.aggregate.elapsed_times import CpuTimes
from rbtrace_py.model.stacks import RubyThread, Sample, SampleFlags, ThreadState
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sample_weights import SampleWeights, Seen
from sample_makers import stack

PID, TID = 4211, 4213
THREAD = RubyThread(PID, TID, 0x1000, "worker")
WORK, REST = stack("Job#work@/app/job.rb:4"), stack("Job#rest@/app/job.rb:9")
PERIOD = 100
MOVING = RubyThread(PID, None, 0x2000, "moving")
"""An M:N thread: its kernel thread may differ between passes."""


class Clocks:
    """The kernel's times of a process's only thread, in ns."""

    def __init__(self, ran: int = 0, delay: int = 0) -> None:
        self.process = SimpleNamespace(pid=PID, cpu_ns=ran)
        self.ran, self.delay = ran, delay
        self.threads_by_tid = {TID: THREAD}
        self.has_ended = False

    def all_times(self) -> dict[int, CpuTimes]:
        times = self.times(TID)
        return {} if times is None else {TID: times}

    def times(self, tid: int) -> CpuTimes | None:
        return None if self.has_ended else CpuTimes(self.ran, self.delay)


def samples(running: int, sleeping: int, thread: RubyThread = THREAD) -> list[Seen]:
    """Return samples of a thread on the kernel thread TID, in the order of their
    numbers."""
    states = [ThreadState.RUNNING] * running + [ThreadState.SLEEPING] * sleeping
    return [
        Seen(
            Sample(at, thread, state, WORK if at < running else REST, PERIOD), TID, None
        )
        for at, state in enumerate(states)
    ]


def weighed(
    weights: SampleWeights,
    clocks: Clocks,
    batch: list[Seen],
    is_over: bool = True,
) -> dict[str, int]:
    """Return the weight of each innermost frame."""
    found = Counter[str]()
    process = cast(RubyProcess, clocks)
    for sample in weights.weighed(batch, [process], is_over):
        found[sample.stack.frames[-1].name] += sample.weight
    return dict(found)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks(ran=7_000, delay=5_000)


def begun(mode: SamplingMode, clocks: Clocks) -> SampleWeights:
    weights = SampleWeights(mode)
    weights.begin(cast(RubyProcess, clocks))
    return weights


def test_cpu_time_is_shared(clocks: Clocks) -> None:
    weights = begun(SamplingMode.CPU, clocks)
    clocks.ran += 650
    assert weighed(weights, clocks, samples(4, 0)) == {"Job#work": 650}


def test_waits_have_what_the_run_time_leaves(clocks: Clocks) -> None:
    weights = begun(SamplingMode.WALL, clocks)
    clocks.ran += 250
    found = weighed(weights, clocks, samples(4, 6))
    assert found == {"Job#work": 250, "Job#rest": 750}


def test_the_surplus_of_ready_samples_is_a_run_queue(clocks: Clocks) -> None:
    weights = begun(SamplingMode.WALL, clocks)
    clocks.ran += 250
    clocks.delay += 100
    found = weighed(weights, clocks, samples(4, 6))
    assert found == {"Job#work": 250, "(run queue)": 100, "Job#rest": 650}


def test_rows_of_a_run_queue_are_not_counted(clocks: Clocks) -> None:
    weights = begun(SamplingMode.WALL, clocks)
    clocks.ran, clocks.delay = clocks.ran + 250, clocks.delay + 100
    found = weights.weighed(samples(4, 6), [cast(RubyProcess, clocks)], True)
    flags = Counter(one.flags for one in found)
    assert flags == {SampleFlags.CLEAN: 10, SampleFlags.RUN_TIME: 4}
    queued = [one for one in found if one.flags]
    assert {one.state for one in queued} == {ThreadState.RUNNABLE}
    assert [one.time_ns for one in found] == sorted(one.time_ns for one in found)


def test_a_thread_that_no_sample_saw_running(clocks: Clocks) -> None:
    weights = begun(SamplingMode.WALL, clocks)
    for _ in range(10):
        clocks.ran += 300
        found = weighed(weights, clocks, samples(0, 10), is_over=False)
        assert found == {"Job#rest": 700}
    found = weighed(weights, clocks, [])
    assert found == {"(running, not sampled)": 3000}


def test_the_last_batch_of_a_thread_that_ended(clocks: Clocks) -> None:
    weights = begun(SamplingMode.WALL, clocks)
    clocks.has_ended = True
    found = weighed(weights, clocks, samples(4, 6), is_over=False)
    assert found == {"Job#work": 400, "Job#rest": 600}
    assert weighed(weights, clocks, []) == {}
    assert not weights._elapsed._threads


@pytest.mark.parametrize("mode", [SamplingMode.CPU, SamplingMode.WALL])
def test_mn_threads_share_the_run_time_of_their_kernel_thread(
    mode: SamplingMode, clocks: Clocks
) -> None:
    weights = begun(mode, clocks)
    clocks.ran += 250
    clocks.delay += 750
    waits = samples(0, 6, MOVING) if mode is SamplingMode.WALL else []
    found = weighed(weights, clocks, [*samples(10, 0, MOVING), *waits])
    expected = {"Job#work": 250}
    if mode is SamplingMode.WALL:
        expected |= {"(run queue)": 750, "Job#rest": 600}
    assert found == expected


@pytest.mark.parametrize("mode", [SamplingMode.CPU, SamplingMode.WALL])
def test_the_last_run_time_of_an_ended_thread_comes_from_its_samples(
    mode: SamplingMode, clocks: Clocks
) -> None:
    """Each was runnable for a period, but another process had the CPU for as long."""
    weights = begun(mode, clocks)
    clocks.has_ended = True
    batch = samples(10, 0)
    for at in (1, 4, 8):  # the others' times were not read
        times = CpuTimes(7_050 + at * 50, 5_000 + at * 50)
        batch[at] = batch[at]._replace(times=times)
    found = weighed(weights, clocks, batch)
    expected = {"Job#work": 2 * PERIOD + 7 * 50 + PERIOD}
    if mode is SamplingMode.WALL:
        expected["(run queue)"] = 7 * 50
    assert found == expected
    assert sum(found.values()) <= 10 * PERIOD


def test_cpu_time_of_threads_that_no_sample_has(clocks: Clocks) -> None:
    """The samples account for 250 of 900 ns."""
    weights = begun(SamplingMode.CPU, clocks)
    clocks.ran += 250
    clocks.process.cpu_ns += 900
    weighed(weights, clocks, samples(4, 0))
    assert list(weights.missing()) == [(PID, 650, 900)]
    clocks.threads_by_tid.clear()  # as if it ran no Ruby: its time is known, too
    weighed(weights, clocks, [])
    assert list(weights.missing()) == [(PID, 400, 900)]


def test_a_thread_without_ruby_that_ended_is_not_missing(clocks: Clocks) -> None:
    weights = begun(SamplingMode.CPU, clocks)
    clocks.threads_by_tid.clear()
    clocks.ran += 900
    clocks.process.cpu_ns += 900
    weighed(weights, clocks, [], is_over=False)
    clocks.has_ended = True
    weighed(weights, clocks, [])
    assert list(weights.missing()) == [(PID, 0, 900)]


def test_missing_time_of_a_process_that_ended(clocks: Clocks) -> None:
    """Samples since the last reading of the clocks do not count: the clocks lack
    them."""
    weights = begun(SamplingMode.CPU, clocks)
    clocks.ran += 250
    clocks.process.cpu_ns += 900
    weighed(weights, clocks, samples(4, 0), is_over=False)
    clocks.has_ended, clocks.process.cpu_ns = True, None
    assert weighed(weights, clocks, samples(5, 0)) == {"Job#work": 5 * PERIOD}
    assert list(weights.missing()) == [(PID, 650, 900)]


def test_missing_time_of_a_process_with_a_pid_of_before(clocks: Clocks) -> None:
    weights = begun(SamplingMode.CPU, clocks)
    clocks.ran += 700
    clocks.process.cpu_ns += 700
    weighed(weights, clocks, samples(4, 0))
    weights.begin(cast(RubyProcess, clocks))
    clocks.process.cpu_ns += 600
    weighed(weights, clocks, [])
    assert list(weights.missing()) == [(PID, 600, 600)]
