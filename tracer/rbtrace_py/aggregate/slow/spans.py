"""Slow spans: how each spent its time, and the stacks of all.

A sample is a time off the CPU, or a tick at which the thread was on a CPU. All other
time of a thread is on the CPU. This part of a span is divided equally among the ticks
of the span's fiber.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from rbtrace_py.aggregate.run_times import NOT_SAMPLED as NOT_SAMPLED_STACK
from rbtrace_py.aggregate.run_times import divided
from rbtrace_py.aggregate.slow.set_aside import MAX_SAMPLES, SetAside, ThreadKey
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.events import Event
from rbtrace_py.model.stacks import Sample, Stack, ThreadState
from rbtrace_py.model.waits import ON_CPU

SUSPENDED = "suspended"
"""Part of a span during which its thread ran other fibers or waited in them."""
NOT_SAMPLED = "not sampled"

_MAX_COUNTED = 1024
_MAX_FIBERS = 1 << 14

Interval = tuple[int, int]
"""Start and end in ns."""


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """A span that has ended.

    Attributes:
        series: Name of its series.
        event: Event of its end.
        duration_ns: Time from its start to its end.
        thread: Address of the rb_thread_t in which it ended.
        fiber: Address of the rb_fiber_t in which it ended.
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
    """An interval in which a span had a stack or was suspended; wall clock."""

    began_ns: int
    ended_ns: int
    part: str
    stack: Stack


class Exemplar(NamedTuple):
    """A slow span, and how it spent its time.

    Attributes:
        span: The span.
        parts: Nanoseconds per part; their sum is the span's duration.
        times: The consecutive intervals, if they are kept.
    """

    span: EndedSpan
    parts: Mapping[str, int]
    times: Sequence[StackTime] = ()


@dataclass(frozen=True, slots=True)
class SlowPart:
    """The slow spans of a result.

    Attributes:
        least_ns: Minimum duration of a slow span.
        count: Number of slow spans.
        total_ns: Sum of their durations.
        parts: Nanoseconds of that sum per part.
        exemplars: The slowest spans, slowest first.
    """

    least_ns: int
    count: int
    total_ns: int
    parts: Mapping[str, int]
    exemplars: tuple[Exemplar, ...]


class SlowSpans:
    """Computes how slow spans spent their time, from samples.

    Args:
        least_ns: Minimum duration of a slow span.
        counts: Gets the stacks of slow spans, weighted in ns. Time that several spans
            of a fiber share counts once.
        part_of: Returns the part (the way a thread spent its time) of a sample.
        most_exemplars: Number of slowest spans to keep.
        keeps_times: Keep the ``times`` of the exemplars, too.
        most_samples: Maximum number of samples to hold.

    Attributes:
        incomplete: Number of spans whose first samples were already discarded.
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
        """Add a slow span; all its samples must have been added before."""
        key = span.event.pid, span.thread
        whole = span.began_ns, span.ended_ns
        samples = self._samples.between(key, *whole)
        fresh = self._fresh((key, span.fiber), whole)
        parts: Counter[str] = Counter()
        times = []
        ran_ns = 0
        for sample, part, interval in _intervals(samples, span, self._part_of):
            parts[part] += interval[1] - interval[0]
            if self._keeps_times:
                times.append(StackTime(*interval, part, sample.stack))
            weight = sum(_overlap(interval, one) for one in fresh)
            if part == ON_CPU:
                ran_ns += weight
            elif weight and part != SUSPENDED:
                self.counts.add(sample._replace(weight=weight))
        if ran_ns:
            ticks = self._ticks(samples, span, fresh) or [_unseen(samples[-1])]
            for tick, ran in divided([(one, 1) for one in ticks], ran_ns):
                self.counts.add(tick._replace(weight=ran))
        if rest := span.duration_ns - parts.total():
            parts[NOT_SAMPLED] = rest
        self._keep(Exemplar(span, parts, times))

    def _ticks(
        self, samples: list[Sample], span: EndedSpan, times: list[Interval]
    ) -> list[Sample]:
        """Return the ticks of a span's fiber in these intervals."""
        return [
            sample
            for sample in samples
            if self._part_of(sample) == ON_CPU
            and sample.fiber in (span.fiber, 0)
            and any(began < sample.time_ns <= ended for began, ended in times)
        ]

    def _keep(self, exemplar: Exemplar) -> None:
        span = exemplar.span
        self._count += 1
        self._total_ns += span.duration_ns
        self.incomplete += span.began_ns < self._samples.forgotten_ns
        self._parts.update(exemplar.parts)
        if self._most_exemplars:
            # The number keeps the first of equal spans, and avoids a comparison of
            # exemplars.
            one = (span.duration_ns, -next(self._numbers), exemplar)
            heapq.heappush(self._slowest, one)
            if len(self._slowest) > self._most_exemplars:
                heapq.heappop(self._slowest)

    def _fresh(self, key: tuple[ThreadKey, int], span: Interval) -> list[Interval]:
        """Return the intervals of a span that no span of its fiber has counted yet.

        Spans arrive in the order of their ends, so an outer span follows its inner
        spans.
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
        """Return the slow spans so far."""
        slowest = sorted(self._slowest, reverse=True)
        return SlowPart(
            self._least_ns,
            self._count,
            self._total_ns,
            dict(self._parts.most_common()),
            tuple(exemplar for _, _, exemplar in slowest),
        )


def _intervals(
    samples: list[Sample], span: EndedSpan, part_of: Callable[[Sample], str]
) -> Iterator[tuple[Sample, str, Interval]]:
    """Yield a sample, its part, and its interval, for each time of a span in order.

    A time on the CPU ends with its tick, or when the thread leaves the CPU. If the
    thread had no tick since it got the CPU, the sample's stack is the marker. A time
    off the CPU may continue beyond the span: Linux 6.18 sometimes fails to fire
    sched_switch.
    """
    until, is_own = span.began_ns, False
    seen: Sample | None = None  # since the thread got the CPU
    for sample in samples:
        part = part_of(sample)
        is_tick = part == ON_CPU
        # 0: its thread has not created a fiber yet
        is_of_fiber = sample.fiber in (span.fiber, 0)
        if is_tick and sample.time_ns > span.ended_ns:
            # The tick is after the span. A span without a wait or tick was on the CPU.
            is_own |= until == span.began_ns and is_of_fiber
            break
        is_own = is_of_fiber
        began = sample.time_ns - (0 if is_tick else sample.weight)
        began = max(until, min(began, span.ended_ns))
        if began > until:
            running = sample if is_tick else seen or _unseen(sample)
            yield running, ON_CPU if is_own else SUSPENDED, (until, began)
        until, seen = began, sample if is_tick else None
        if not is_tick:
            ended = max(until, min(sample.time_ns, span.ended_ns))
            yield sample, part if is_own else SUSPENDED, (began, ended)
            until = ended
    if is_own and until < span.ended_ns:
        yield seen or _unseen(sample), ON_CPU, (until, span.ended_ns)


def _unseen(sample: Sample) -> Sample:
    return sample._replace(stack=NOT_SAMPLED_STACK, state=ThreadState.RUNNING)


def _overlap(one: Interval, other: Interval) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
