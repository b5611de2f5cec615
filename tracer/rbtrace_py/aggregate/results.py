"""Results of a session: plain values that a report renders.

A result is a snapshot. Two snapshots of one session can be subtracted
(``minus``), which is how ``--interval`` gets its lines.
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

    ``count`` is what was seen, ``total`` the exact sum (nanoseconds for a
    latency), ``distribution`` the values where the command keeps them.
    ``is_other`` marks the row that holds what came after ``--max-keys``.
    ``truncated`` marks a text key that was cut to the string size. ``raw`` is
    the key's bytes, by which a row is known in the next snapshot. ``key_role``
    is what the operand is for whose value the key is.
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
        """Return the name of a key that is a number for something: an outcome."""
        if self.key_role is OperandRole.OUTCOME and type(self.key) is int:
            return OUTCOMES.get(self.key)
        return None

    @property
    def histogram(self) -> Distribution:
        """The values; without any where only hits are counted (``count``)."""
        return Histogram({}) if self.distribution is None else self.distribution

    @property
    def min(self) -> Number:
        """Lowest value of the lowest bucket; 0 when there is none."""
        return self.histogram.min

    @property
    def max(self) -> Number:
        """Highest value of the highest bucket; 0 when there is none."""
        return self.histogram.max

    @property
    def mean(self) -> float:
        """Mean of the values, to three digits; 0.0 when there is none."""
        return self.histogram.mean

    def percentile(self, percentile: float) -> Number:
        """Return the value at ``percentile``, 0 to 100; 0 when there is none."""
        return self.histogram.percentile(percentile)

    @property
    def identity(self) -> tuple[str, bytes, bool]:
        """The identity of a row across snapshots: its key as the kernel has it."""
        return (self.series, self.raw, self.is_other)

    def plus(self, other: Group) -> Group:
        """Both together; ``other`` is of the same key."""
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
"""Counters of what should be in a result and is not."""

SAMPLE_LOSSES = ("lost_samples", "incomplete_spans", "cut_samples")
"""Counters of what is missing where slow spans are looked into, not among them."""

GAUGES = ("open_begins", "running", "not_followed", "without_agent", "targeted")
"""Counters that say how it is now, and are not subtracted."""

UNWRITTEN = ("targeted",)
"""Counters that only JSON has: for people a note says it."""


@dataclass(frozen=True, slots=True)
class Result:
    """A snapshot of one command's answer.

    command: latency, count, values
    by: name of the ``--by`` operand, or None
    unit: ns for latencies and durations, none for counts, the operand's type for
        other values
    operand: whose values these are, or None
    started_ns, ended_ns: wall clock, integer nanoseconds since the epoch
    counters: everything seen but not in the groups, by name, in the order a
        report shows them; names are documented in docs/formats
    slow: where slow spans spent their time, with ``--slower-than``
    cost: of tracing, once it has ended; None where that is not known
    filter: text of ``--filter``, or None
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
        """The values of all groups together."""
        found = [group.histogram for group in self.groups if group.distribution]
        return reduce(Distribution.merge, found) if found else Histogram({})

    @property
    def losses(self) -> dict[str, int]:
        """Losses by name: what is missing from the result; empty if nothing is."""
        found = {name: self.counters.get(name, 0) for name in LOSSES}
        return {name: number for name, number in found.items() if number}

    @property
    def lost(self) -> int:
        """The sum of ``losses``."""
        return lost(self.counters)

    def minus(self, older: Result) -> Result:
        """Return what came since ``older``; keys that were not seen are dropped."""
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
    """Return how much is missing from the result that should be in it."""
    return sum(counters.get(name, 0) for name in LOSSES)
