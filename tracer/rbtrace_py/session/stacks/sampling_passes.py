"""Sampling as a session that can be driven: pass after pass, at a rate."""

from __future__ import annotations

import time

from rbtrace_py.session.drive import EARLY_SECONDS
from rbtrace_py.session.stacks.sample_timer import SampleTimer
from rbtrace_py.session.stacks.sampling import Add, Sampling


class SamplingPasses:
    """Passes of an entered ``sampling``; each sample goes to ``add``.

    The passes have a clock of their own, which begins with this.
    """

    def __init__(self, sampling: Sampling, add: Add) -> None:
        self._sampling = sampling
        self._add = add
        self._timer = SampleTimer(sampling.options.rate, sampling.statistics)

    @property
    def is_over(self) -> bool:
        return self._sampling.is_over

    @property
    def seen(self) -> int:
        return self._sampling.statistics.samples

    def advance(self, until: float, most: int | None) -> None:
        timer, statistics = self._timer, self._sampling.statistics
        sample, add = self._sampling.sample, self._add
        end = int(until * 1e9)
        nearly = end - int(EARLY_SECONDS * 1e9)
        while timer.wait(end):
            sample(add)
            if timer.began >= nearly or (most and statistics.samples >= most):
                break
        statistics.ended_ns = time.time_ns()

    def refresh(self) -> None:
        self._sampling.refresh()

    def finish(self) -> None:
        """Take in what came since; the sampling may go on."""
        self._sampling.refresh()
