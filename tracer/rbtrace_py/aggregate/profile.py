"""Input of a sample report: the counts and, if kept, the samples."""

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

    Attributes:
        counts: Weights by thread, state, and stack.
        meta: Description of the recording.
        samples: Returns the samples in the order in which they were taken. It can be
            called repeatedly.
        cpu: Times of threads on and off CPUs, if known.
        names: Names of threads.
        calls: Number of calls of each stack's innermost frame from its callers, if
            calls were traced instead of sampled.
    """

    counts: StackCounts
    meta: Meta = field(default_factory=Meta)
    samples: Callable[[], Iterable[Sample]] | None = None
    cpu: CpuTimes | None = None
    names: Mapping[Thread, str] = field(default_factory=dict)
    calls: StackCounts | None = None

    @property
    def unit(self) -> str:
        """The unit of weights, as in ``Statistics``."""
        return self.counts.statistics.unit

    @property
    def one_cpu(self) -> int | None:
        """Weight of one CPU over the elapsed time: 100 % in mode cpu.

        None if shares are parts of all samples.
        """
        if self.meta.mode != "cpu":
            return None
        own = self.counts.statistics
        # Older recordings count samples, at most one per pass.
        whole = own.duration_ns if own.unit == "ns" else own.rounds
        return whole or None

    def stream(self) -> Iterator[Sample]:
        """Yield the samples; if they were not kept, one without a time per row."""
        if self.samples is not None:
            yield from self.samples()
            return
        for thread, state, frames, weight in self.counts.rows():
            yield Sample(0, thread, state, Stack(frames), weight)
