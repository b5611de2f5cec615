"""Slow spans: where the time of each went, and the stacks of them all.

A sample is the end of an interval: the time on the CPU since the sample before, or a
time off it. What of it lies in a slow span of its fiber counts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from rbtrace_py.aggregate.slow.set_aside import MAX_SAMPLES, SetAside, ThreadKey
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.events import Event
from rbtrace_py.model.stacks import Sample, Stack
from rbtrace_py.model.waits import ON_CPU

SUSPENDED = "suspended"
"""Its thread ran other fibers, or waited in them."""
NOT_SAMPLED = "not sampled"

_MAX_COUNTED = 1024
_MAX_FIBERS = 1 << 14

Interval = tuple[int, int]
"""Begin and end, in ns."""


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """One span that has ended.

    event: its end
    duration_ns: before that it began
    thread, fiber: addresses of rb_thread_t and rb_fiber_t where it ended
    """

    series: str
    event: Event
    duration_ns: int
    thread: int
    fiber: int

    @property
    def ended_ns(self) -> int:
        return self.event.time_ns

    @property
    def began_ns(self) -> int:
        return self.ended_ns - self.duration_ns


class StackTime(NamedTuple):
    """A time in which a span had a stack, or was suspended; wall clock."""

    began_ns: int
    ended_ns: int
    part: str
    stack: Stack


class Exemplar(NamedTuple):
    """A slow span, and how it spent its time.

    parts: ns in each way; they sum up to its duration
    times: one after the other, where they are kept
    """

    span: EndedSpan
    parts: Mapping[str, int]
    times: Sequence[StackTime] = ()


@dataclass(frozen=True, slots=True)
class SlowPart:
    """What a result has of slow spans.

    least_ns: spans are slow from there on
    total_ns: the sum of their durations, and parts: how it was spent
    exemplars: the slowest, the slowest first
    """

    least_ns: int
    count: int
    total_ns: int
    parts: Mapping[str, int]
    exemplars: tuple[Exemplar, ...]


class SlowSpans:
    """See the module.

    part_of: says of a sample how the thread spent it
    most_exemplars: how many of the slowest are kept
    keeps_times: are their ``times``, too?
    counts: the stacks of slow spans, by ns; time in several of them counts once
    incomplete: spans whose first samples had been forgotten
    """

    def __init__(
        self,
        least_ns: int,
        counts: StackCounts,
        part_of: Callable[[Sample], str],
        most_exemplars: int,
        keeps_times: bool = False,
        most_samples: int = MAX_SAMPLES,
    ) -> None:
        self.counts = counts
        self._least_ns = least_ns
        self._part_of = part_of
        self._most_exemplars = most_exemplars
        self._keeps_times = keeps_times
        self._samples = SetAside(most_samples)
        self.incomplete = 0
        self._count = self._total_ns = 0
        self._parts: Counter[str] = Counter()
        self._slowest: list[tuple[int, int, Exemplar]] = []
        self._numbers = count()
        self._counted: dict[tuple[ThreadKey, int], list[Interval]] = {}

    def add(self, sample: Sample) -> None:
        """Set a sample aside."""
        self._samples.add(sample)

    def end(self, span: EndedSpan) -> None:
        """Take a slow span in, once all its samples are there."""
        key = span.event.pid, span.thread
        whole = span.began_ns, span.ended_ns
        samples = self._samples.between(key, *whole)
        fresh = self._fresh((key, span.fiber), whole)
        parts: Counter[str] = Counter()
        times = []
        for sample, part, interval in self._intervals(samples, span):
            parts[part] += _overlap(interval, whole)
            if self._keeps_times:
                began = max(interval[0], span.began_ns)
                times.append(StackTime(began, interval[1], part, sample.stack))
            weight = sum(_overlap(interval, one) for one in fresh)
            if weight and part != SUSPENDED:
                self.counts.add(sample._replace(weight=weight))
        if rest := span.duration_ns - parts.total():
            parts[NOT_SAMPLED] = rest
        self._keep(Exemplar(span, parts, times))

    def _intervals(
        self, samples: list[Sample], span: EndedSpan
    ) -> Iterator[tuple[Sample, str, Interval]]:
        """Yield each sample, how the span spent its time, and that time.

        Since the last sample it had the CPU: what it ran up to its end is what it was
        last seen to run. A time off the CPU that goes on beyond is one whose end the
        kernel missed (Linux 6.18 fires no sched_switch now and then).
        """
        last: Sample | None = None
        is_own, until = False, span.ended_ns
        for sample in samples:
            part = self._part_of(sample)
            if part == ON_CPU and sample.time_ns > span.ended_ns:
                break  # what it ran later
            # 0: no fiber had been made on its thread yet
            is_own = sample.fiber in (span.fiber, 0)
            if is_own and part == ON_CPU:
                last = sample
            until = min(sample.time_ns, span.ended_ns)
            interval = sample.time_ns - sample.weight, until
            yield sample, part if is_own else SUSPENDED, interval
        if last is not None and is_own and until < span.ended_ns:
            yield last, ON_CPU, (until, span.ended_ns)

    def _keep(self, exemplar: Exemplar) -> None:
        span = exemplar.span
        self._count += 1
        self._total_ns += span.duration_ns
        self.incomplete += span.began_ns < self._samples.forgotten_ns
        self._parts.update(exemplar.parts)
        if self._most_exemplars:
            # Of equal ones the first is kept, and exemplars are never compared.
            one = (span.duration_ns, -next(self._numbers), exemplar)
            heapq.heappush(self._slowest, one)
            if len(self._slowest) > self._most_exemplars:
                heapq.heappop(self._slowest)

    def _fresh(self, key: tuple[ThreadKey, int], span: Interval) -> list[Interval]:
        """Return what of a span no other one of its fiber has counted.

        Spans come in the order of their ends, so one that holds others comes after.
        """
        began, ended = span
        counted = self._counted.pop(key, [])
        self._counted[key] = counted
        if len(self._counted) > _MAX_FIBERS:
            del self._counted[next(iter(self._counted))]
        fresh = []
        while counted and counted[-1][1] > began:
            inner_began, inner_ended = counted.pop()
            fresh.append((inner_ended, ended))
            ended = inner_began
            began = min(began, inner_began)
        if ended > span[0]:
            fresh.append((span[0], ended))
        counted.append((began, span[1]))
        del counted[:-_MAX_COUNTED]
        return fresh

    def part(self) -> SlowPart:
        """Return what was seen so far."""
        slowest = sorted(self._slowest, reverse=True)
        return SlowPart(
            self._least_ns,
            self._count,
            self._total_ns,
            dict(self._parts.most_common()),
            tuple(exemplar for _, _, exemplar in slowest),
        )


def _overlap(one: Interval, other: Interval) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
