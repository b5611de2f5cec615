"""Samples that are set aside until it is known whether they count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rbtrace_py.model.stacks import RubyThread, Sample

MAX_SAMPLES = 1 << 18
"""Default limit; the samples take 53 MB."""

ThreadKey = tuple[int, int]
"""PID and address of rb_thread_t."""


class SetAside:
    """The newest samples of all threads, per thread in the order of time.

    Args:
        most: Maximum number of samples; beyond it, the oldest are discarded.

    Attributes:
        forgotten_ns: Latest end of a discarded sample, CLOCK_REALTIME in ns.
    """

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most = most
        self._arrivals: deque[RubyThread] = deque()
        self._by_thread: dict[ThreadKey, deque[Sample]] = {}
        self.forgotten_ns = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, sample: Sample) -> None:
        samples = self._by_thread.setdefault(_key(sample.thread), deque())
        place = len(samples)  # a child's first samples arrive late
        while place and samples[place - 1].time_ns > sample.time_ns:
            place -= 1
        samples.insert(place, sample)
        self._arrivals.append(sample.thread)
        if len(self._arrivals) > self._most:
            self._forget()

    def _forget(self) -> None:
        key = _key(self._arrivals.popleft())
        samples = self._by_thread[key]
        self.forgotten_ns = max(self.forgotten_ns, samples.popleft().time_ns)
        if not samples:
            del self._by_thread[key]

    def between(self, key: ThreadKey, began_ns: int, ended_ns: int) -> list[Sample]:
        """Return a thread's samples whose times overlap an interval."""
        return list(_between(self._by_thread.get(key, ()), began_ns, ended_ns))[::-1]


def _key(thread: RubyThread) -> ThreadKey:
    return thread.pid, thread.address


def _between(
    samples: deque[Sample] | tuple[()], began_ns: int, ended_ns: int
) -> Iterator[Sample]:
    for sample in reversed(samples):
        if sample.time_ns <= began_ns:
            return
        if sample.time_ns - sample.weight < ended_ns:
            yield sample
