"""Run time of threads, divided among the ticks that found them running."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rbtrace_py.model.stacks import Frame, FrameKind, Stack

ThreadId = tuple[int, int]
"""PID and kernel thread id."""
RanNs = Callable[[ThreadId], "int | None"]
"""Returns a thread's run time since its creation in ns, or None if it has ended."""
Tick = TypeVar("Tick")
_NAME = "(running, not sampled)"
NOT_SAMPLED = Stack((Frame(FrameKind.MARKER, _NAME, _NAME, "", None),))
"""The stack of a thread that ran but never had a tick."""


@dataclass(slots=True)
class _RunTime(Generic[Tick]):
    """Run time of one thread in ns, since its creation.

    Attributes:
        given: The part that is assigned to ticks or precedes the sampling.
        known: The run time at the last reading.
        last: A tick of its last batch with ticks.
    """

    given: int = 0
    known: int = 0
    last: Tick | None = None


class RunTimes(Generic[Tick]):
    """Divides the run time of each thread among its ticks, batch by batch.

    While a thread runs, the kernel updates its run time (``se.sum_exec_runtime``) only
    at the scheduler's ticks, every 4 ms at CONFIG_HZ=250. The difference between two
    samples is therefore too coarse: in a run shorter than 4 ms, the first sample would
    get the time of all. So the ticks of a batch, about a second, share the run time of
    their thread since its last batch with ticks.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._threads: dict[ThreadId, _RunTime[Tick]] = {}
        self._clock = clock
        self._began = clock()

    def begin(self, thread: ThreadId, ran_ns: int) -> None:
        """Exclude the run time of a thread so far; without this, all of it counts."""
        self._threads[thread] = _RunTime(ran_ns, ran_ns)

    def weigh(
        self, batch: Mapping[ThreadId, Sequence[tuple[Tick, int]]], ran_ns: RanNs
    ) -> Iterator[tuple[Tick, int]]:
        """Yield each tick of a batch with its part of the run time in ns.

        Args:
            batch: Ticks of each thread, each with its nominal ns. Nominal weights are
                used in the last batch of a thread that has ended, because its run time
                is unknown.
            ran_ns: Returns a thread's run time.
        """
        for thread, ticks in batch.items():
            nominal = sum(weight for _, weight in ticks)
            now = ran_ns(thread)
            own = self._threads.get(thread)
            if own is None:
                own = self._threads[thread] = self._new(now, nominal)
            if now is None:
                now = own.known + nominal
            own.known, own.last = max(own.known, now), ticks[-1][0]
            yield from divided(ticks, own.known - own.given)
            own.given = own.known

    def _new(self, ran_ns: int | None, nominal: int) -> _RunTime[Tick]:
        """Return the run time of a thread that started since the sampling began.

        A thread with more run time started earlier. Its ticks keep their nominal ns.
        """
        if ran_ns is None or ran_ns <= self._clock() - self._began:
            return _RunTime()
        return _RunTime(ran_ns - nominal, ran_ns - nominal)

    @property
    def last_ticks(self) -> list[Tick]:
        """The ticks that may be assigned more time later."""
        return [own.last for own in self._threads.values() if own.last is not None]

    def rest(self, ran_ns: RanNs, is_over: bool) -> Iterator[tuple[Tick, int]]:
        """Yield each ended thread's last tick with the run time since.

        Args:
            ran_ns: Returns a thread's run time.
            is_over: Include threads that have not ended.
        """
        for thread, own in list(self._threads.items()):
            now = ran_ns(thread)
            if now is None:
                del self._threads[thread]
            if own.last is None:
                continue
            own.known = max(own.known, now or 0)
            if (now is None or is_over) and own.known > own.given:
                yield own.last, own.known - own.given
                own.given = own.known

    def not_sampled(
        self, threads: Collection[ThreadId], ran_ns: RanNs
    ) -> Iterator[tuple[ThreadId, int]]:
        """Yield the threads that ran but never had a tick, with their run time."""
        for thread in threads:
            own = self._threads.get(thread) or _RunTime()
            ran = (ran_ns(thread) or 0) - own.given
            if own.last is None and ran > 0:
                self.begin(thread, own.given + ran)
                yield thread, ran


def divided(
    ticks: Sequence[tuple[Tick, int]], whole: int
) -> Iterator[tuple[Tick, int]]:
    """Yield ticks with weights in the same proportion that sum to ``whole``."""
    nominal = sum(weight for _, weight in ticks)
    passed = given = 0
    for tick, weight in ticks:
        passed += weight
        until = whole * passed // nominal
        yield tick, until - given
        given = until
