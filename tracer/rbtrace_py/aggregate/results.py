"""Results of a session: plain values that a report renders.

A result is a snapshot. ``minus`` subtracts two snapshots of a session; this yields the
lines of ``--interval``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.histogram import Distribution, Histogram, Number
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.model.probes import OUTCOMES, OperandRole
from rbtrace_py.model.recorded_groups import Key

if TYPE_CHECKING:
    from rbtrace_py.aggregate.slow.spans import SlowPart


@dataclass(frozen=True, slots=True)
class Group:
    """One row: a series (a probe, a pair, a span) and, with ``--by``, a key.

    Attributes:
        series: Name of the series.
        key: Value of the key; None for nil, and without ``--by``.
        count: Number of hits.
        total: Exact sum of the values (nanoseconds for a latency).
        distribution: The values, if the command keeps them.
        is_other: True for the row of all keys beyond ``--max-keys``.
        truncated: True if the key is a string that was cut to the string size.
        raw: Bytes of the key, which identify the row in the next snapshot.
        key_role: Role of the operand that is the key.
    """

    series: str
    key: Key
    count: int
    total: int = 0
    distribution: Distribution | None = None
    is_other: bool = False
    truncated: bool = False
    raw: bytes = b""
    key_role: OperandRole = OperandRole.ARGUMENT

    @property
    def key_name(self) -> str | None:
        """The name of a key that is the number of an outcome, else None."""
        if self.key_role is OperandRole.OUTCOME and type(self.key) is int:
            return OUTCOMES.get(self.key)
        return None

    @property
    def histogram(self) -> Distribution:
        """The values; empty if only hits are counted (``count``)."""
        return Histogram({}) if self.distribution is None else self.distribution

    @property
    def min(self) -> Number:
        """Lowest value of the lowest bucket; 0 without values."""
        return self.histogram.min

    @property
    def max(self) -> Number:
        """Highest value of the highest bucket; 0 without values."""
        return self.histogram.max

    @property
    def mean(self) -> float:
        """Mean of the values, to three digits; 0.0 without values."""
        return self.histogram.mean

    def percentile(self, percentile: float) -> Number:
        """Return the value at ``percentile``, 0 to 100; 0 without values."""
        return self.histogram.percentile(percentile)

    @property
    def identity(self) -> tuple[str, bytes, bool]:
        """The identity of a row across snapshots: its series and the key's bytes."""
        return (self.series, self.raw, self.is_other)

    def plus(self, other: Group) -> Group:
        """Return the sum of two groups of the same key."""
        mine, others = self.distribution, other.distribution
        return replace(
            self,
            count=self.count + other.count,
            total=self.total + other.total,
            distribution=mine.merge(others) if mine and others else mine,
        )

    def minus(self, older: Group) -> Group:
        distribution = self.distribution
        if distribution is not None and older.distribution is not None:
            distribution = distribution.minus(older.distribution)
        return replace(
            self,
            count=self.count - older.count,
            total=self.total - older.total,
            distribution=distribution,
        )


LOSSES = (
    "lost",
    "kernel_missed",
    "no_room",
    "too_deep",
    "unreadable",
    "no_stream",
    "no_block",
    "no_values",
    "silent",
    "left_out",
    "hung_up",
    "deleted",
)
"""Counters of events that are missing from a result."""

SAMPLE_LOSSES = ("lost_samples", "incomplete_spans", "cut_samples")
"""Counters of losses in the analysis of slow spans; LOSSES does not contain them."""

GAUGES = ("open_begins", "running", "not_followed", "without_agent", "targeted")
"""Counters of a current state, which are not subtracted."""

UNWRITTEN = ("targeted",)
"""Counters that only JSON contains; other reports have a note instead."""


@dataclass(frozen=True, slots=True)
class Result:
    """A snapshot of one command's result.

    Attributes:
        command: Name of the command: latency, count, values.
        pids: PIDs of the targets.
        series: Names of the series.
        started_ns: Wall clock, integer nanoseconds since the epoch.
        ended_ns: Wall clock, integer nanoseconds since the epoch.
        groups: The rows.
        counters: Counts of everything outside the groups by name, in the order of a
            report. docs/formats documents the names.
        by: Name of the ``--by`` operand, or None.
        unit: ``ns`` for latencies and durations, empty for counts, the operand's type
            for other values.
        operand: Name of the operand that has the values, or None.
        slow: Times of slow spans, with ``--slower-than``.
        cost: Cost of tracing, once it has ended; None if unknown.
        filter: Text of ``--filter``, or None.
    """

    command: str
    pids: tuple[int, ...]
    series: tuple[str, ...]
    started_ns: int
    ended_ns: int
    groups: tuple[Group, ...]
    counters: dict[str, int] = field(default_factory=dict)
    by: str | None = None
    unit: str = ""
    operand: str | None = None
    slow: SlowPart | None = None
    cost: HitCost | None = None
    filter: str | None = None

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def histogram(self) -> Distribution:
        """The sum of the distributions of all groups."""
        found = [group.histogram for group in self.groups if group.distribution]
        return reduce(Distribution.merge, found) if found else Histogram({})

    @property
    def losses(self) -> dict[str, int]:
        """Numbers of missing events by name of the counter, without zeros."""
        found = {name: self.counters.get(name, 0) for name in LOSSES}
        return {name: number for name, number in found.items() if number}

    @property
    def lost(self) -> int:
        """The sum of ``losses``."""
        return lost(self.counters)

    def minus(self, older: Result) -> Result:
        """Return the result since ``older``, without the keys that had no hits."""
        before = {group.identity: group for group in older.groups}
        fresh = []
        for group in self.groups:
            old = before.get(group.identity)
            difference = group.minus(old) if old else group
            if difference.count or self.by is None:
                fresh.append(difference)
        counters = {
            name: value - (0 if name in GAUGES else older.counters.get(name, 0))
            for name, value in self.counters.items()
        }
        return replace(
            self, started_ns=older.ended_ns, groups=tuple(fresh), counters=counters
        )


def lost(counters: Mapping[str, int]) -> int:
    """Return the number of events that are missing from a result."""
    return sum(counters.get(name, 0) for name in LOSSES)
