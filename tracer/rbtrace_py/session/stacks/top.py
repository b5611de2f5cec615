"""``top``: current and recent activity of methods and threads."""

from __future__ import annotations

import time

from rbtrace_py.aggregate.idle import is_idle
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.aggregate.top import Picture, RecentWeights, Slice, ThreadNow
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.model.stacks import RubyThread, Sample, ThreadState
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling

_MOST_SHOWN = 10_000
"""Maximum number of threads of all processes in a picture."""


class Top:
    """Counts the samples of an entered session per interval.

    Pass ``add`` to SamplingPasses, and call ``end_interval`` after each interval.

    Args:
        sampling: The entered session.
        kept: Number of intervals that count as recent.
        idle: Include threads that wait for work.
    """

    def __init__(self, sampling: Sampling, kept: int = 1, idle: bool = False) -> None:
        self._idle = idle
        self._sampling = sampling
        self._kept = kept
        self._cpu: dict[RubyThread, tuple[int, int]] = {}
        self.clear()

    def clear(self) -> None:
        """Discard all counts and start again."""
        self._sampling.statistics.ended_ns = time.time_ns()
        self._before: Statistics = self._sampling.statistics.copy()
        self._weights = RecentWeights(self._kept)
        self._left_out = 0
        self._begin()

    def _begin(self) -> None:
        self._slice = StackCounts(self._sampling.statistics, by_thread=False)
        self._began = time.monotonic_ns()

    def add(self, sample: Sample) -> None:
        """Count one sample."""
        self._slice.add(sample)

    def end_interval(self) -> Picture:
        """Add the counts of the ended interval, and return the new picture."""
        ended = self._slice if self._idle else self._slice.without(is_idle)
        self._left_out += self._slice.weight - ended.weight
        self._weights.add(
            Slice(
                time.monotonic_ns() - self._began,
                ended.weight,
                ended.by_method(),
                ended.by_line(),
            )
        )
        self._begin()
        return self._picture()

    def _picture(self) -> Picture:
        sampling, weights = self._sampling, self._weights
        meta = sampling.meta
        return Picture(
            pids=meta.pids,
            command=meta.command,
            rubies=meta.rubies,
            mode=meta.mode,
            statistics=sampling.statistics.minus(self._before),
            recent_ns=weights.recent_ns,
            recent=weights.recent,
            weight=weights.weight,
            idle=self._left_out,
            methods=weights.methods(),
            lines=weights.lines(),
            threads=tuple(self._threads()),
            folder=meta.folder,
        )

    def _threads(self) -> list[ThreadNow]:
        """Return all threads in any mode, with their CPU use since the last call."""
        found: list[ThreadNow] = []
        cpu: dict[RubyThread, tuple[int, int]] = {}
        for ruby in self._sampling.rubies:
            samples = self._standing(ruby)
            for thread in ruby.threads[: _MOST_SHOWN - len(found)]:
                share = self._cpu_share(ruby, thread, cpu)
                found.append(_thread(thread, samples.get(thread), share))
        self._cpu = cpu
        return found

    def _standing(self, ruby: RubyProcess) -> dict[RubyThread, Sample]:
        try:
            samples = ruby.samples(SamplingMode.WALL, self._sampling.options.pause)
            return {sample.thread: sample for sample in samples}
        except NoSuchTarget:
            return {}

    def _cpu_share(
        self,
        ruby: RubyProcess,
        thread: RubyThread,
        cpu: dict[RubyThread, tuple[int, int]],
    ) -> float | None:
        """Return the share of one CPU since the last call; update ``cpu``."""
        used = ruby.cpu_ns(thread)
        if used is None:
            return None
        now = time.monotonic_ns()
        cpu[thread] = (used, now)
        before, then = self._cpu.get(thread, (used, now))
        return min(max(used - before, 0) / (now - then), 1.0) if now > then else None


def _thread(thread: RubyThread, sample: Sample | None, cpu: float | None) -> ThreadNow:
    if sample is None:
        return ThreadNow(thread, ThreadState.UNKNOWN, cpu, None)
    frames = sample.stack.frames
    return ThreadNow(thread, sample.state, cpu, frames[-1] if frames else None)
