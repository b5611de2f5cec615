"""Statistics of a sampler: its samples and losses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from rbtrace_py.model.stacks import SampleFlags

_LAST_SECOND = 253_402_300_799


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The place in a recording after which data is missing.

    Attributes:
        reason: ``cut off`` if the file only lacks its end, else ``damaged``.
        at_ns: CLOCK_REALTIME of the last data before that place, or 0.
        detail: The error, and the file if the recording is a folder; may be empty.
    """

    reason: str
    at_ns: int
    detail: str = ""

    def __str__(self) -> str:
        place = f"at {utc(self.at_ns)}" if self.at_ns else "at its beginning"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.reason} {place}{detail}: the rest of the file is missing"


def utc(time_ns: int) -> str:
    """Format a CLOCK_REALTIME to the second; times after 9999 are clamped."""
    seconds = min(max(time_ns // 10**9, 0), _LAST_SECOND)
    return f"{time.strftime('%F %T', time.gmtime(seconds))} UTC"


@dataclass(slots=True)
class Statistics:
    """Counts of the samples and losses of a sampling. Each report of samples has them.

    Attributes:
        unit: Unit of weights: ``samples``, ``calls``, ``events``, ``ns``, or, if an
            argument of the events is the weight, ``ns``, ``bytes``, or ``weight``.
        rate: Requested sampling passes per second; 0 without passes.
        started_ns: CLOCK_REALTIME; 0 if unknown.
        ended_ns: CLOCK_REALTIME; 0 if unknown.
        rounds: Number of sampling passes.
        late: Passes that began more than half a period late.
        samples: Number of samples, including those with flags.
        trimmed: Samples with this flag; a sample may have several flags.
        truncated: Samples with this flag.
        unresolved: Samples with this flag.
        ended: Unresolved samples whose process had ended.
        unclean: Samples with any of these flags.
        failed: Failed samples, which are not in ``samples``, or lost events of a
            recording of calls. With engine ``bpf``, the six fields below give reasons.
        no_room: The kernel's map was full.
        buffer_full: The kernel's ring buffer was full.
        unreadable: The memory of the stack was not mapped.
        unknown_thread: The thread was not known yet.
        in_use: There were too many events at once on one CPU.
        no_weight: The event had no weight.
        other: Weight of ``(other)``: there was no room for more stacks.
        idle: Weight of idle samples that a report omits.
        counted: ``samples`` or ``calls``.
        engine: ``bpf`` or ``memory``; empty if unknown.
        has_gaps: True if events were missed without being counted; a note names them.
        gap_ns: Time between the sections of an appended recording.
        incomplete: Set if data at the end of the recording is missing.
        deleted: Calls that a recorder deleted from its folder because the disk was
            full.
    """

    unit: str = "samples"
    rate: float = 0.0
    started_ns: int = 0
    ended_ns: int = 0
    rounds: int = 0
    late: int = 0
    samples: int = 0
    trimmed: int = 0
    truncated: int = 0
    unresolved: int = 0
    ended: int = 0
    unclean: int = 0
    failed: int = 0
    no_room: int = 0
    buffer_full: int = 0
    unreadable: int = 0
    unknown_thread: int = 0
    in_use: int = 0
    no_weight: int = 0
    other: int = 0
    idle: int = 0
    counted: str = "samples"
    engine: str = ""
    has_gaps: bool = False
    gap_ns: int = 0
    incomplete: Incomplete | None = None
    deleted: int = 0

    @property
    def clean(self) -> int:
        return self.samples - self.unclean

    @property
    def duration_ns(self) -> int:
        """Sampling time in ns."""
        return max(self.ended_ns - self.started_ns - self.gap_ns, 0)

    @property
    def achieved_rate(self) -> float:
        """Sampling passes per second, at most the requested rate; 0 if unknown.

        The cap is needed because the duration of a part of a session is inexact.
        """
        if not self.duration_ns:
            return 0.0
        achieved = self.rounds * 1e9 / self.duration_ns
        return min(achieved, self.rate) if self.rate else achieved

    @property
    def is_useless(self) -> bool:
        """True if more is missing than the recording has, or an unknown amount."""
        return self.incomplete is not None or self.deleted > self.samples

    def gaps(self) -> Iterator[str]:
        """Yield sentences that describe the gaps of a recording."""
        if self.deleted:
            calls = "1 call" if self.deleted == 1 else f"{self.deleted:,} calls"
            yield (
                f"{calls} deleted because the disk was full: the folder is complete"
                f" since {utc(self.started_ns)}"
            )
        if self.incomplete:
            yield str(self.incomplete)

    def repeat(self, times: int, flags: SampleFlags) -> None:
        """Count a sample ``times`` more times."""
        self.samples += times
        self.flag(flags, times)

    def flag(self, flags: SampleFlags, times: int = 1) -> None:
        """Count the flags of one or several samples that are already counted."""
        if flags & SampleFlags.RUN_TIME:
            self.samples -= times
            return
        self.unclean += times * bool(flags)
        self.trimmed += times * bool(flags & SampleFlags.TRIMMED)
        self.truncated += times * bool(flags & SampleFlags.TRUNCATED)
        self.unresolved += times * bool(flags & SampleFlags.UNRESOLVED)
        self.ended += times * bool(flags & SampleFlags.ENDED)

    def take_losses(self, found: Statistics) -> None:
        """Copy the counters in ``LOSSES`` from ``found``, and advance ``ended_ns``."""
        self.ended_ns = max(self.ended_ns, found.ended_ns)
        for name in LOSSES:
            setattr(self, name, getattr(found, name))

    def copy(self) -> Statistics:
        return replace(self)

    def minus(self, older: Statistics) -> Statistics:
        """Return the statistics since ``older``, an earlier copy."""
        found = replace(self, started_ns=older.ended_ns or older.started_ns)
        found.gap_ns -= older.gap_ns
        for name in COUNTERS:
            setattr(found, name, getattr(self, name) - getattr(older, name))
        return found

    def plus(self, other: Statistics) -> Statistics:
        """Return the sum of two measurements."""
        found = replace(
            self,
            unit=self.unit or other.unit,
            rate=self.rate or other.rate,
            started_ns=min(
                filter(None, (self.started_ns, other.started_ns)), default=0
            ),
            ended_ns=max(self.ended_ns, other.ended_ns),
        )
        found.gap_ns = 0
        found.gap_ns = max(0, found.duration_ns - self.duration_ns - other.duration_ns)
        for name in COUNTERS:
            setattr(found, name, getattr(self, name) + getattr(other, name))
        return found


_NO_COUNTERS = {
    *("unit", "counted", "engine", "has_gaps", "incomplete", "deleted"),
    *("rate", "started_ns", "ended_ns", "gap_ns"),
}
COUNTERS = tuple(
    field.name for field in fields(Statistics) if field.name not in _NO_COUNTERS
)
"""Fields that add up."""
REASONS = (
    "no_room",
    "buffer_full",
    "unreadable",
    "unknown_thread",
    "in_use",
    "no_weight",
)
"""Counters of failed samples by reason, if known."""
LOSSES = ("rounds", "late", "failed", "deleted", *REASONS)
"""Counters that cannot be derived from the samples."""
