"""Sampling as a drivable session: in passes, or by the kernel."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.run_times import ThreadId
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.model.stacks import Sample, ThreadState
from rbtrace_py.session.drive import EARLY_SECONDS
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sample_weights import SampleWeights, Seen
from rbtrace_py.session.stacks.sampling import Add, MemoryEngine, Sampling

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.kernel_stacks import KernelStacks

_TAKE_SECONDS = 1.0
"""Seconds between two batches of samples. A batch gets its weights together."""
_TIMES_NS = 50_000_000
"""Minimum ns between two samples of a thread whose times are read from the kernel.
These times determine the weights of a thread that ends."""
_FIRST_BATCH_SECONDS, _BATCH_SECONDS = 0.01, 0.1
"""Seconds between two reads of names. The names of several stacks are read at once,
while the required memory is in the CPU's cache. The first intervals are shorter: a
program that starts may end soon, and frees code while it loads files."""
_CHANGING_BATCH_SECONDS = 0.02
"""The same while code is replaced, because replaced code may be freed soon."""
_MOST_AT_ONCE = 200
"""Stacks to name before the clock is read again."""
_PUT_OFF_SECONDS = 10.0
"""Maximum seconds to postpone due work while naming is behind."""
_MOST_MISSING, _MOST_MISSING_NS = 0.05, 50_000_000
"""Maximum CPU time without samples that needs no note: as a share, and in ns. The last
samples of ended threads are inexact, too."""


class SampleTimer:
    """Starts ``rate`` passes per second, each at a random moment of its period.

    With regular passes, a program that acts at the same rate would be sampled always
    or never during that action. A pass that starts more than half a period late counts
    as late, and so does each period that ends before its pass could start.

    Attributes:
        began: Start of the last pass, by ``clock`` in ns.
    """

    def __init__(
        self,
        rate: float,
        statistics: Statistics,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._period = round(1e9 / rate)
        self._statistics = statistics
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random().random
        self._start = self.began = clock()
        self._due = self._start + int(self._random() * self._period)

    def wait(self, until: int) -> bool:
        """Sleep until the next pass is due.

        A pass that is due before ``until`` runs even if the busy machine starts it
        later. Without this pass, the time since the last pass would have no sample.

        Args:
            until: Time of the monotonic clock, in ns.

        Returns:
            False if the next pass is due after ``until``.
        """
        # Inline on purpose: at 100 passes per second, the code of every called
        # function is out of the CPU's caches.
        due, clock = self._due, self._clock
        is_due = due < until
        wanted = due if is_due else until
        now = clock()
        while now < wanted:
            self._sleep((wanted - now) / 1e9)
            now = clock()
        if not is_due:
            return False
        period, statistics = self._period, self._statistics
        self.began = now
        statistics.rounds += 1
        # The current period may still have its own pass.
        missed = (now - self._start) // period - 1
        if missed < 0:
            missed = 0
        if (now - due) * 2 > period:
            statistics.late += missed or 1
        start = self._start = self._start + period * (missed + 1)
        self._due = start + int(self._random() * period)
        return True

    def end(self) -> None:
        """Count periods that ended without a pass as late."""
        missed = max((self._clock() - self._start) // self._period, 0)
        self._statistics.late += missed
        self._start += missed * self._period


class SamplingPasses:
    """Passes of an entered ``sampling``; each sample is passed to ``add``.

    The passes have their own timer, which starts now. In modes cpu and wall, the
    samples of about one second get their weights together (``SampleWeights``). In mode
    gvl, a sample weighs the time since the previous pass.
    """

    def __init__(self, sampling: Sampling, add: Add) -> None:
        options = sampling.options
        self._sampling = sampling
        self._add = add
        self._timer = SampleTimer(options.rate, sampling.statistics)
        self._mode = options.mode
        self._has_idle = options.idle or options.mode is SamplingMode.CPU
        self._period = round(1e9 / options.rate)
        has_weights = options.mode is not SamplingMode.GVL
        self._weights = SampleWeights(options.mode) if has_weights else None
        self._batch: list[Seen] = []
        self._times_due: dict[ThreadId, int] = {}  # of the batch
        self._left_out = 0  # samples of the batch
        self._passed: dict[int, int] = {}  # when the last pass over each process began
        self._rubies: dict[int, RubyProcess] = {}
        self._find_processes()
        self._due = time.monotonic() + _TAKE_SECONDS

    def _find_processes(self) -> None:
        now, passed, self._passed = time.monotonic_ns(), self._passed, {}
        self._rubies = {ruby.process.pid: ruby for ruby in self._sampling.rubies}
        for pid, ruby in self._rubies.items():
            self._passed[pid] = passed.get(pid, now)
            if pid not in passed and self._weights is not None:
                self._weights.begin(ruby)

    @property
    def is_over(self) -> bool:
        return self._sampling.is_over

    @property
    def seen(self) -> int:
        came = len(self._batch) - self._left_out
        return self._sampling.statistics.samples + came

    def advance(self, until: float, most: int | None) -> None:
        timer, sample = self._timer, self._sampling.sample
        end = int(until * 1e9)
        nearly = end - int(EARLY_SECONDS * 1e9)
        while timer.wait(end):
            sample(self._add_weighted)
            for pid in self._passed:
                self._passed[pid] = timer.began
            if timer.began >= self._due * 1e9:
                self.settle()
            if timer.began >= nearly or (most and self.seen >= most):
                break
        self._sampling.statistics.ended_ns = time.time_ns()

    def _add_weighted(self, sample: Sample) -> None:
        """Add a sample. Its nominal weight is elapsed ns; in mode cpu, a period."""
        time_ns = self._period
        if self._mode is not SamplingMode.CPU:
            passed = self._passed.get(sample.thread.pid, self._timer.began)
            time_ns = max(1, self._timer.began - passed)
        is_left_out = not self._has_idle and sample.state is ThreadState.SLEEPING
        sample = sample._replace(weight=time_ns)
        if self._weights is not None:
            self._batch.append(self._seen(sample))
            self._left_out += is_left_out
        elif not is_left_out:
            self._add(sample)

    def _seen(self, sample: Sample) -> Seen:
        pid, now = sample.thread.pid, self._timer.began
        ruby = self._rubies.get(pid)
        tid = None if ruby is None else ruby.kernel_thread_of(sample.thread)
        if ruby is None or tid is None or sample.state is not ThreadState.RUNNING:
            return Seen(sample, tid, None)
        if now < self._times_due.get((pid, tid), 0):
            return Seen(sample, tid, None)
        self._times_due[pid, tid] = now + _TIMES_NS
        return Seen(sample, tid, ruby.times(tid))

    def refresh(self) -> None:
        self._sampling.refresh()
        self._find_processes()

    def finish(self) -> None:
        """Add the remaining samples; the sampling may continue."""
        self._timer.end()
        self._settle(is_over=True)
        self._note_missing()
        self._sampling.refresh()

    def _note_missing(self) -> None:
        if self._weights is None:
            return
        for pid, missing, cpu in self._weights.missing():
            if missing > max(_MOST_MISSING * cpu, _MOST_MISSING_NS):
                self._sampling.statistics.has_gaps = True
                self._sampling.notes.add(
                    f"{missing / 1e9:.2f} s of {cpu / 1e9:.2f} s of CPU time are"
                    f" missing: threads of process {pid} ended before a sample"
                )

    def settle(self) -> None:
        """Add the samples of the current batch."""
        self._settle(is_over=False)

    def _settle(self, is_over: bool) -> None:
        self._due = time.monotonic() + _TAKE_SECONDS
        if self._weights is None:
            return
        batch, self._batch, self._left_out = self._batch, [], 0
        self._times_due.clear()
        for sample in self._weights.weighed(batch, self._sampling.rubies, is_over):
            if self._has_idle or sample.state is not ThreadState.SLEEPING:
                self._add(sample)


class KernelPasses:
    """Samples that the kernel takes of an entered ``sampling``, as they arrive.

    The session is also over if walking at events exceeds the accepted cost.
    """

    def __init__(self, sampling: Sampling, kernel: KernelStacks, add: Add) -> None:
        self._sampling = sampling
        self._kernel = kernel
        self._add = add
        self._due = self._refresh = time.monotonic() + _TAKE_SECONDS
        self._is_behind = False  # stacks arrive faster than their names can be read
        self._backoff = Backoff(_FIRST_BATCH_SECONDS, _BATCH_SECONDS)

    @property
    def is_over(self) -> bool:
        events = self._sampling.events
        return self._sampling.is_over or (events is not None and events.is_too_costly)

    @property
    def seen(self) -> int:
        return self._kernel.seen

    def advance(self, until: float, most: int | None) -> None:
        kernel = self._kernel
        while (left := until - time.monotonic()) > 0:
            if not self._is_behind:
                batch = self._backoff.pause()
                if kernel.is_changing:
                    batch = min(batch, _CHANGING_BATCH_SECONDS)
                time.sleep(min(left, batch))
            self._is_behind = kernel.collect(self._add, _MOST_AT_ONCE)
            if most and self.seen >= most:
                break
        if self.is_due(self._due):
            self.settle()

    def is_due(self, time_due: float) -> bool:
        """Return whether work like ``settle``, which processes all stacks, is due.

        It is postponed while naming is behind, because it would delay the
        caller's next read of the clock.
        """
        late = time.monotonic() - time_due
        return late >= (_PUT_OFF_SECONDS if self._is_behind else -EARLY_SECONDS)

    def settle(self) -> None:
        """Add all samples until now."""
        self._kernel.settle(self._add)
        self._due = time.monotonic() + _TAKE_SECONDS

    def refresh(self) -> None:
        if self._sampling.events is not None:
            self._sampling.events.refresh()
        targets = self._sampling.targets
        alive = {process.pid for process in targets.alive()}
        ended = any(ruby.process.pid not in alive for ruby in self._sampling.rubies)
        if ended:
            self.settle()  # while the data of the ended process is available
        now = time.monotonic()
        if ended or targets.follow or now >= self._refresh - EARLY_SECONDS:
            self._refresh = now + _TAKE_SECONDS
            self._sampling.refresh()
            self._kernel.add_ended(lambda pid: pid in targets.processes, self._add)

    def finish(self) -> None:
        self._kernel.stop()
        self.settle()
        self._sampling.refresh()
        self._kernel.add_ended(lambda pid: False, self._add)
        self._sampling.notes.add(*self._kernel.loss_notes())


def sampling_passes(sampling: Sampling, add: Add) -> SamplingPasses | KernelPasses:
    """Return the session of an entered ``sampling`` that passes samples to ``add``."""
    engine = sampling.engine
    if isinstance(engine, MemoryEngine):
        return SamplingPasses(sampling, add)
    return KernelPasses(sampling, engine, add)
