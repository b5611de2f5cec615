"""Elapsed time of sampled threads, divided into run time, run queue, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.aggregate.run_times import ThreadId


class CpuTimes(NamedTuple):
    """Times of a thread since its birth in ns, as the kernel counts them.

    ran_ns: run time (``se.sum_exec_runtime``); of a running thread as of its last tick
    delay_ns: time in run queues (``sched_info.run_delay``), until it last got a CPU
    """

    ran_ns: int
    delay_ns: int


@dataclass(slots=True)
class _Elapsed:
    """Elapsed time of one thread in ns.

    ran, delay: run time and run delay that are accounted for
    left: the part that no sample was given yet; below 0: given too early
    surplus: time in which it was ready to run, minus its run time
    queued: the part of ``surplus`` that its samples were given
    """

    ran: int = 0
    delay: int = 0
    left: int = 0
    surplus: int = 0
    queued: int = 0


class ElapsedTimes:
    """Divides what the run time of each thread leaves of its elapsed time.

    While a thread waits for a CPU, its samples look as if it ran. The kernel's count of
    run time shows the surplus. The kernel's run delay limits the part that is a run
    queue. Sums are kept from one batch to the next, so that chance does not add up, but
    not for longer: time that the kernel counts as neither (of a paused process, or
    stolen by a hypervisor) belongs to no sample.
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
        """Return the time in a run queue, and the waiting time, of a batch in ns.

        ready: elapsed time of the samples in which the thread was ready to run
        waits: elapsed time of its other samples
        times: the kernel's, now; None: unknown, as it has ended
        last: the times of this batch, if the thread has ended. If they are unknown,
            too, it ran for as long as it was ready to run.
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
        """Return a thread that came since the sampling began.

        A thread that ran for longer is older.
        """
        if times is None or times.ran_ns <= ready + waits:
            return _Elapsed()
        return _Elapsed(times.ran_ns - ready, times.delay_ns)

    def forget_ended(
        self, but: Collection[ThreadId], has_ended: Callable[[ThreadId], bool]
    ) -> None:
        """Forget the threads that have ended, ``but`` those with samples."""
        for thread in [one for one in self._threads if one not in but]:
            if has_ended(thread):
                del self._threads[thread]
