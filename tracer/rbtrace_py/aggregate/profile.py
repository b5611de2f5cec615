"""Input of a sample report: the counts and, where kept, the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import Sample, Stack

if TYPE_CHECKING:
    from rbtrace_py.aggregate.calls import Thread
    from rbtrace_py.aggregate.switches import CpuTimes


@dataclass(frozen=True, slots=True)
class Profile:
    """Counted samples.

    samples: gives them in the order in which they were taken, each time it is called
    cpu: when threads were on CPUs, where that is known
    names: of its threads
    calls: how often the innermost frame of each stack was called from those around
        it, where calls were seen and not samples
    """

    counts: StackCounts
    meta: Meta = field(default_factory=Meta)
    samples: Callable[[], Iterable[Sample]] | None = None
    cpu: CpuTimes | None = None
    names: Mapping[Thread, str] = field(default_factory=dict)
    calls: StackCounts | None = None

    @property
    def unit(self) -> str:
        """The unit of weights, as ``Statistics`` has it."""
        return self.counts.statistics.unit

    @property
    def one_cpu(self) -> int | None:
        """Weight of one CPU for the time that passed: 100 % in mode cpu.

        None where shares are parts of all samples.
        """
        if self.meta.mode != "cpu":
            return None
        own = self.counts.statistics
        # Older recordings count samples, at most one per pass.
        whole = own.duration_ns if own.unit == "ns" else own.rounds
        return whole or None

    def stream(self) -> Iterator[Sample]:
        """The samples; where they were not kept, one without a time for each row."""
        if self.samples is not None:
            yield from self.samples()
            return
        for thread, state, frames, weight in self.counts.rows():
            yield Sample(0, thread, state, Stack(frames), weight)
