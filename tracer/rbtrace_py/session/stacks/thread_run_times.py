"""Run times of the threads of Ruby processes, for ``RunTimes`` of both engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rbtrace_py.aggregate.run_times import NOT_SAMPLED, RanNs, RunTimes, ThreadId, Tick
from rbtrace_py.linux.tasks import run_time_of
from rbtrace_py.model.stacks import Sample, SampleFlags, ThreadState
from rbtrace_py.session.stacks.ruby_process import RubyProcess

Rubies = Mapping[int, RubyProcess]
"""Attached processes by PID."""


def begin(run_times: RunTimes[Tick], ruby: RubyProcess) -> None:
    """Exclude the run time of a process's threads so far."""
    for tid, times in ruby.all_times().items():
        run_times.begin((ruby.process.pid, tid), times.ran_ns)


def reader_of(rubies: Rubies) -> RanNs:
    """Return a function that reads the run time of a thread of these processes."""

    def read(thread: ThreadId) -> int | None:
        pid, tid = thread
        if pid in rubies:
            times = rubies[pid].times(tid)
            return None if times is None else times.ran_ns
        return run_time_of(pid, tid)  # of a child that is not attached yet

    return read


def not_sampled(
    run_times: RunTimes[Tick], rubies: Rubies, time_ns: int
) -> Iterator[Sample]:
    """Yield a sample of each Ruby thread that ran but never had a tick.

    Args:
        run_times: Run times of all threads.
        rubies: Attached processes by PID.
        time_ns: CLOCK_REALTIME at the end of the sampling, in ns.
    """
    threads = {
        (ruby.process.pid, tid): thread
        for ruby in rubies.values()
        for tid, thread in ruby.threads_by_tid.items()
        if thread.tid is not None  # else it shares kernel threads with others
    }
    for one, ran in run_times.not_sampled(threads, reader_of(rubies)):
        thread, state = threads[one], ThreadState.RUNNING
        yield Sample(time_ns, thread, state, NOT_SAMPLED, ran, SampleFlags.RUN_TIME)
