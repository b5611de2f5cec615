"""Sampling passes as a session: how far ``advance`` goes."""

from __future__ import annotations

import time
from typing import cast

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.stacks import Sample
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.stacks.sampling_options import SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import SamplingPasses


class TwoThreads:
    """A sampling whose every pass has two samples."""

    options = SamplingOptions(rate=1000)

    def __init__(self) -> None:
        self.statistics = Statistics()

    def sample(self, add: Add) -> None:
        for _ in range(2):
            add(cast(Sample, None))
            self.statistics.samples += 1


def passes(sampling: TwoThreads, taken: list[Sample]) -> SamplingPasses:
    return SamplingPasses(cast(Sampling, sampling), taken.append)


def test_a_pass_is_whole_where_it_has_enough() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    session = passes(sampling, taken)
    session.advance(time.monotonic() + 60, 3)
    assert len(taken) == session.seen == 4
    assert sampling.statistics.rounds == 2
    assert sampling.statistics.ended_ns > 0


def test_no_pass_comes_after_the_time_it_is_given() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    passes(sampling, taken).advance(time.monotonic(), None)
    assert taken == []


def test_a_pass_shortly_before_its_time_is_the_last() -> None:
    sampling, taken = TwoThreads(), list[Sample]()
    until = time.monotonic() + 0.01
    passes(sampling, taken).advance(until, None)
    # On a busy machine the time may be over before the first.
    assert len(taken) <= 2
