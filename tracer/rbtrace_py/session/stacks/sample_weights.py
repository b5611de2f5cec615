"""Weights of samples that were read from memory, in ns."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from rbtrace_py.aggregate.elapsed_times import CpuTimes, ElapsedTimes
from rbtrace_py.aggregate.run_times import RunTimes, ThreadId, divided
from rbtrace_py.model.stack_walk import OffCpu
from rbtrace_py.model.stacks import Sample, SampleFlags, ThreadState
from rbtrace_py.session.stacks import thread_run_times
from rbtrace_py.session.stacks.off_cpu import OffCpuStacks
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode

_Batch = Mapping[ThreadId, Sequence[tuple[Sample, int]]]
"""Samples of each thread, with their periods in ns."""
_IN_RUN_QUEUE = OffCpu(
    is_ready=True, is_queued=False, is_uninterruptible=False, file_type=0, call=None
)


class Seen(NamedTuple):
    """A sample and its kernel thread.

    Attributes:
        sample: Weighs its own period, in ns.
        tid: Kernel thread id; None: unknown.
        times: Times of the kernel thread, just after the sample; None: not read.
    """

    sample: Sample
    tid: int | None
    times: CpuTimes | None


@dataclass(slots=True)
class _Run:
    """Times of one thread in a batch, computed from its samples.

    SampleWeights uses them if the thread has ended.

    Attributes:
        first: Times of its first sample with times.
        last: Times of its last sample with times.
        nominal: Sum of the periods of its samples until ``first``, in ns.
        since: Sum of the periods of its samples since ``last``, in ns.
    """

    first: CpuTimes | None = None
    last: CpuTimes | None = None
    nominal: int = 0
    since: int = 0

    def add(self, weight: int, times: CpuTimes | None) -> None:
        self.since += weight
        if times is None:
            return
        if self.first is None:
            self.first, self.nominal = times, self.since
        self.last, self.since = times, 0

    @property
    def times(self) -> CpuTimes:
        """Run time of the batch; all samples are nominal if none has times."""
        if self.first is None or self.last is None:
            return CpuTimes(self.since, 0)
        ran = self.last.ran_ns - self.first.ran_ns
        delay = self.last.delay_ns - self.first.delay_ns
        return CpuTimes(ran + self.nominal + self.since, delay)


@dataclass(slots=True)
class _CpuTime:
    """CPU time of one process in ns, from the last read while the process ran.

    Attributes:
        began: CPU time of the process when the sampling began.
        before: Times of each of its kernel threads when the sampling began.
        now: CPU time of the process.
        others: CPU time since then of each kernel thread that does not run Ruby,
            including ended threads.
        given: Sum of the weights of its samples.
    """

    began: int
    before: dict[int, CpuTimes]
    now: int
    others: dict[int, int] = field(default_factory=dict)
    given: int = 0

    def read(self, ruby: RubyProcess) -> bool:
        """Read the times again; return False if the process has ended."""
        now = ruby.process.cpu_ns
        if now is None:
            return False
        self.now = now
        for tid, times in ruby.all_times().items():
            before = self.before.get(tid)
            self.others[tid] = times.ran_ns - (before.ran_ns if before else 0)
        for tid in self.others.keys() & ruby.threads_by_tid.keys():
            del self.others[tid]
        return True

    @property
    def missing(self) -> int:
        return self.now - self.began - sum(self.others.values()) - self.given


class SampleWeights:
    """Assigns each thread's samples weights whose sum is the thread's time.

    In mode cpu, that is its run time. In mode wall it is elapsed time: samples of the
    running thread share its run time, the others share the rest. If a thread was ready
    to run for longer than it ran, the difference is ``(run queue)``. Running M:N
    threads share the run time of the kernel thread that they were on.
    """

    def __init__(self, mode: SamplingMode) -> None:
        self._is_elapsed = mode is SamplingMode.WALL
        self._run_times: RunTimes[Sample] = RunTimes()
        self._elapsed = ElapsedTimes()
        self._stacks = OffCpuStacks()
        self._cpu: dict[int, _CpuTime] = {}

    def begin(self, ruby: RubyProcess) -> None:
        """Exclude the times of a process's threads so far."""
        cpu, now = ruby.process.cpu_ns, ruby.all_times()
        if cpu is not None:
            self._cpu[ruby.process.pid] = _CpuTime(cpu, now, cpu)
        for tid, times in now.items():
            thread = ruby.process.pid, tid
            self._run_times.begin(thread, times.ran_ns)
            if self._is_elapsed:
                self._elapsed.begin(thread, times)

    def weighed(
        self,
        samples: Iterable[Seen],
        rubies: Iterable[RubyProcess],
        is_over: bool,
    ) -> list[Sample]:
        """Return the samples of a batch with their weights, in order of time.

        Args:
            samples: Samples with nominal weights.
            rubies: Attached processes.
            is_over: No other batch follows.

        Returns:
            The samples. Rows with the flag RUN_TIME add time that no sample has.
        """
        by_pid = {ruby.process.pid: ruby for ruby in rubies}
        ready: dict[ThreadId, list[tuple[Sample, int]]] = defaultdict(list)
        waits: dict[ThreadId, list[tuple[Sample, int]]] = defaultdict(list)
        runs: dict[ThreadId, _Run] = defaultdict(_Run)
        for sample, tid, times in samples:
            pid, own_tid = sample.thread.pid, sample.thread.tid
            if self._is_elapsed and sample.state is not ThreadState.RUNNING:
                # A waiting M:N thread has no kernel thread.
                waits[pid, own_tid or -1].append((sample, sample.weight))
                continue
            thread = pid, own_tid or tid or -1
            ready[thread].append((sample, sample.weight))
            runs[thread].add(sample.weight, times)
        last = {thread: run.times for thread, run in runs.items()}
        found = list(self._run(ready, by_pid, is_over, last))
        if self._is_elapsed:
            found += self._rest(ready, waits, by_pid, last)
        self._count(found, by_pid, last)
        return sorted(found, key=attrgetter("time_ns"))

    def _count(
        self,
        found: Iterable[Sample],
        rubies: Mapping[int, RubyProcess],
        last: Mapping[ThreadId, CpuTimes],
    ) -> None:
        """Count the CPU time that samples have, and that processes have used.

        The time of a process that has ended is known up to the batch before.
        """
        given: Counter[int] = Counter()
        for sample in found:
            if sample.state is ThreadState.RUNNING:
                given[sample.thread.pid] += sample.weight
        since: Counter[int] = Counter()
        for (pid, _), times in last.items():
            since[pid] += times.ran_ns
        for pid, cpu in self._cpu.items():
            is_there = pid in rubies and cpu.read(rubies[pid])
            cpu.given += given[pid] - (0 if is_there else since[pid])

    def missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield each PID, its CPU time in ns without samples, and all its CPU time.

        The first time belongs to threads that ended before a sample. It is negative if
        the samples of ended threads weigh too much. Call this after the last batch.
        """
        for pid, cpu in self._cpu.items():
            yield pid, cpu.missing, cpu.now - cpu.began

    def _run(
        self,
        ready: _Batch,
        rubies: Mapping[int, RubyProcess],
        is_over: bool,
        last: Mapping[ThreadId, CpuTimes],
    ) -> Iterator[Sample]:
        """Yield samples of running threads with their run time."""
        read, times = thread_run_times.reader_of(rubies), self._run_times
        nominal = {
            thread: tuple(divided(own, last[thread].ran_ns))
            for thread, own in ready.items()
        }
        for sample, ran in times.weigh(nominal, read):
            yield sample._replace(weight=ran)
        now = time.time_ns()
        for sample, ran in times.rest(read, is_over):
            yield _extra_row(sample, ran)._replace(time_ns=now)
        if is_over:
            yield from thread_run_times.not_sampled(times, rubies, now)

    def _rest(
        self,
        ready: _Batch,
        waits: _Batch,
        rubies: Mapping[int, RubyProcess],
        last: Mapping[ThreadId, CpuTimes],
    ) -> Iterator[Sample]:
        """Yield samples with the elapsed time in which the threads did not run."""

        def read(thread: ThreadId) -> CpuTimes | None:
            pid, tid = thread
            return rubies[pid].times(tid) if pid in rubies else None

        threads = ready.keys() | waits.keys()
        for thread in threads:
            own, own_waits = ready.get(thread, ()), waits.get(thread, ())
            queued, waited = self._elapsed.divide(
                thread, _sum(own), _sum(own_waits), read(thread), last.get(thread)
            )
            for sample, weight in divided(own, queued) if queued else ():
                stack, state = self._stacks.of(sample.stack, _IN_RUN_QUEUE)
                yield _extra_row(sample._replace(stack=stack, state=state), weight)
            for sample, weight in divided(own_waits, waited):
                yield sample._replace(weight=weight)
        self._elapsed.forget_ended(threads, lambda thread: read(thread) is None)


def _sum(samples: Sequence[tuple[Sample, int]]) -> int:
    return sum(weight for _, weight in samples)


def _extra_row(sample: Sample, weight: int) -> Sample:
    return sample._replace(weight=weight, flags=SampleFlags.RUN_TIME)
