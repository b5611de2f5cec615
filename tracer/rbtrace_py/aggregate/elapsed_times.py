"""Elapsed time of sampled threads, divided into run time, run queue, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.aggregate.run_times import ThreadId


class CpuTimes(NamedTuple):
    """Times of a thread since its creation, as the kernel counts them.

    Attributes:
        ran_ns: Run time in ns (``se.sum_exec_runtime``); for a running thread, as of
            the scheduler's last tick.
        delay_ns: Time in run queues in ns (``sched_info.run_delay``), until the thread
            last got a CPU.
    """

    ran_ns: int
    delay_ns: int


@dataclass(slots=True)
class _Elapsed:
    """Elapsed time of one thread in ns.

    Attributes:
        ran: Run time that is accounted for.
        delay: Run delay that is accounted for.
        left: Time not yet assigned to a sample; negative if assigned too early.
        surplus: Time in which the thread was ready to run, minus its run time.
        queued: The part of ``surplus`` that is assigned to samples.
    """

    ran: int = 0
    delay: int = 0
    left: int = 0
    surplus: int = 0
    queued: int = 0


class ElapsedTimes:
    """Divides each thread's elapsed time minus its run time.

    Samples of a thread that waits for a CPU look as if it ran. The kernel's count of
    run time reveals this surplus. The kernel's run delay limits the part that is time
    in a run queue. Sums carry over to the next batch, so that random errors do not add
    up. They do not carry over further: time that the kernel counts as neither (the
    process was paused, or a hypervisor took the CPU) belongs to no sample.
    """

    def __init__(self) -> None:
        self._threads: dict[ThreadId, _Elapsed] = {}

    def begin(self, thread: ThreadId, times: CpuTimes) -> None:
        """Exclude the times of a thread so far."""
        self._threads[thread] = _Elapsed(times.ran_ns, times.delay_ns)

    def divide(
        self,
        thread: ThreadId,
        ready: int,
        waits: int,
        times: CpuTimes | None,
        last: CpuTimes | None = None,
    ) -> tuple[int, int]:
        """Return a batch's time in a run queue and its waiting time, in ns.

        Args:
            thread: The thread.
            ready: Elapsed ns of the samples in which the thread was ready to run.
            waits: Elapsed ns of its other samples.
            times: The kernel's current times; None if the thread has ended.
            last: Times of this batch, if the thread has ended. If they are unknown too,
                the thread is assumed to have run while it was ready to run.
        """
        own = self._threads.get(thread)
        if own is None:
            own = self._threads[thread] = self._new(times, ready, waits)
        last = last or CpuTimes(ready, 0)
        now = times or CpuTimes(own.ran + last.ran_ns, own.delay + last.delay_ns)
        ran, own.ran = now.ran_ns - own.ran, now.ran_ns
        elapsed = ready + waits
        own.left = min(own.left + elapsed - ran, elapsed)
        own.surplus = max(own.surplus + ready - ran, own.queued - elapsed)
        queued = min(own.surplus, now.delay_ns - own.delay) - own.queued
        queued = max(0, min(queued, own.left)) if ready else 0
        own.queued += queued
        own.left -= queued
        waiting = max(0, own.left) if waits else 0
        own.left -= waiting
        return queued, waiting

    def _new(self, times: CpuTimes | None, ready: int, waits: int) -> _Elapsed:
        """Return the times of a thread that started since the sampling began.

        A thread with more run time started earlier.
        """
        if times is None or times.ran_ns <= ready + waits:
            return _Elapsed()
        return _Elapsed(times.ran_ns - ready, times.delay_ns)

    def forget_ended(
        self, but: Collection[ThreadId], has_ended: Callable[[ThreadId], bool]
    ) -> None:
        """Forget ended threads, except those in ``but``, which have samples."""
        for thread in [one for one in self._threads if one not in but]:
            if has_ended(thread):
                del self._threads[thread]
