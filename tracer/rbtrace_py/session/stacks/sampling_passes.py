"""Sampling as a session that can be driven: pass after pass, or by the kernel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rbtrace_py.session.drive import EARLY_SECONDS
from rbtrace_py.session.stacks.ruby_process import RubyProcess
from rbtrace_py.session.stacks.sample_timer import SampleTimer
from rbtrace_py.session.stacks.sampling import Add, Sampling

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.kernel_stacks import KernelStacks

_TAKE_SECONDS = 1.0
"""How often what the kernel saw is taken in, and its names read."""
_BATCH_SECONDS = 0.1
"""How long names wait, so that several are read at once, while what they need is in the
processor's cache. Nobody is woken up for a stack."""
_CHANGING_BATCH_SECONDS = 0.02
"""The same while code is replaced: it may go soon."""
_MOST_AT_ONCE = 200
"""Stacks whose names are read before the clock is looked at again."""
_PUT_OFF_SECONDS = 10.0
"""How long at most what is due is put off while names are behind."""


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

    def settle(self) -> None:
        """Take in what came until now."""


class KernelPasses:
    """Samples that the kernel takes, of an entered ``sampling``, as they come.

    It is over, too, where walking at events has cost more than was accepted.
    """

    def __init__(self, sampling: Sampling, kernel: KernelStacks, add: Add) -> None:
        self._sampling = sampling
        self._kernel = kernel
        self._add = add
        self._due = self._refresh = time.monotonic() + _TAKE_SECONDS
        self._is_behind = False  # stacks come faster than their names can be read

    @property
    def is_over(self) -> bool:
        events = self._sampling.events
        return self._sampling.is_over or (events is not None and events.is_too_costly)

    @property
    def seen(self) -> int:
        return self._kernel.seen

    def advance(self, until: float, most: int | None) -> None:
        kernel, rubies = self._kernel, self._rubies()
        while (left := until - time.monotonic()) > 0:
            if not self._is_behind:
                is_changing = kernel.is_changing
                batch = _CHANGING_BATCH_SECONDS if is_changing else _BATCH_SECONDS
                time.sleep(min(left, batch))
            self._is_behind = kernel.collect(rubies, self._add, _MOST_AT_ONCE)
            if most and self.seen >= most:
                break
        if self.is_due(self._due):
            self.settle()

    def is_due(self, time_due: float) -> bool:
        """Is it time for what takes in all that came, as ``settle`` does?

        Not while names are behind: that would hold up who looks at the clock.
        """
        late = time.monotonic() - time_due
        return late >= (_PUT_OFF_SECONDS if self._is_behind else -EARLY_SECONDS)

    def _rubies(self) -> dict[int, RubyProcess]:
        return {ruby.process.pid: ruby for ruby in self._sampling.rubies}

    def settle(self) -> None:
        """Take in what came until now."""
        self._kernel.take(self._rubies(), self._add)
        self._due = time.monotonic() + _TAKE_SECONDS

    def refresh(self) -> None:
        if self._sampling.events is not None:
            self._sampling.events.refresh()
        targets = self._sampling.targets
        alive = {process.pid for process in targets.alive()}
        ended = any(ruby.process.pid not in alive for ruby in self._sampling.rubies)
        if ended:
            self.settle()  # while what was known of it still is
        now = time.monotonic()
        if ended or targets.follow or now >= self._refresh - EARLY_SECONDS:
            self._refresh = now + _TAKE_SECONDS
            self._sampling.refresh()
            self._kernel.give_up(lambda pid: pid in targets.processes, self._add)

    def finish(self) -> None:
        sampling = self._sampling
        if sampling.events is not None:
            sampling.events.finish(sampling.statistics, sampling.notes)
        self._kernel.stop()
        self.settle()
        self._sampling.refresh()
        self._kernel.give_up(lambda pid: False, self._add)
        sampling.notes.add(*self._kernel.loss_notes())


def sampling_passes(sampling: Sampling, add: Add) -> SamplingPasses | KernelPasses:
    """Return the session of an entered ``sampling`` that gives ``add`` its samples."""
    if sampling.kernel is not None:
        return KernelPasses(sampling, sampling.kernel, add)
    return SamplingPasses(sampling, add)
