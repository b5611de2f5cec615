"""Elapsed time of sampled threads, divided into run time, run queue, and waits."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.aggregate.run_times import ThreadId


@dataclass(slots=True)
class _Elapsed:
    """Elapsed time of one thread in ns.

    left: the part that no sample has been given yet; below 0: given too early
    surplus: time in which it was ready to run, minus its run time
    queued: the part of ``surplus`` that its samples were given
    delayed: its run delay before the sampling
    """

    left: int = 0
    surplus: int = 0
    queued: int = 0
    delayed: int = 0


class ElapsedTimes:
    """Divides what the run time of each thread leaves of its elapsed time.

    While a thread waits for a CPU, its samples look as if it ran. The run time of the
    kernel tells by how much they exceed the truth, and the run delay of the kernel
    (``sched_info.run_delay``) limits how much of this was a run queue. The sums are
    kept from batch to batch, so that chance does not add up.
    """

    def __init__(self) -> None:
        self._threads: dict[ThreadId, _Elapsed] = {}

    def begin(self, thread: ThreadId, delayed: int) -> None:
        """Exclude the run delay of a thread so far; without this, all of it counts."""
        self._threads[thread] = _Elapsed(delayed=delayed)

    def divide(
        self, thread: ThreadId, ready: int, waits: int, ran: int, delayed: int
    ) -> tuple[int, int]:
        """Return the time in a run queue, and the waiting time, of a batch in ns.

        ready: elapsed time of the samples in which the thread was ready to run
        waits: elapsed time of its other samples
        ran: run time that its samples were given
        delayed: its run delay since its birth
        """
        own = self._threads.setdefault(thread, _Elapsed())
        own.left += ready + waits - ran
        own.surplus += ready - ran
        queued = min(own.surplus, delayed - own.delayed) - own.queued
        queued = max(0, min(queued, own.left)) if ready else 0
        own.queued += queued
        own.left -= queued
        waiting = max(0, own.left) if waits else 0
        own.left -= waiting
        return queued, waiting
