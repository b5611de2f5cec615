"""Latencies of spans, and the stacks of slow spans.

The kernel walks the stacks at ticks and when threads leave a CPU, as in mode wall. It
sends each sample with its time, thread, and fiber, and each slow span when it ends.
This module joins them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.results import Result
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.slow.spans import EndedSpan, Exemplar, SlowSpans
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.event_records import EventRecords
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.errors import UsageError
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.events import Event, RubyContext
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
from rbtrace_py.session.stacks.off_cpu import part_of
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import KernelPasses
from rbtrace_py.session.targets.targets import Targets

_JOIN_SECONDS = 1.0
_DURATION_SLOT = 0
"""Slot in which trace.c expects the duration."""
_SLOW = "slow"
"""Kind of the engine that reports each slow span."""


@dataclass(frozen=True, slots=True)
class SlowOptions:
    """Options of slow spans.

    Attributes:
        least_ns: Minimum duration of a slow span, in ns.
        rate: Ticks per second.
        exemplars: Number of slowest spans to keep.
        keeps_times: Keep the stacks of exemplars in order of time, too.
    """

    least_ns: int
    rate: float = 99.0
    exemplars: int = 5
    keeps_times: bool = False


class SlowLatency(Latency):
    """Latencies and slow spans; ``profile`` has the stacks of the slow spans."""

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None,
        slow: SlowOptions,
    ) -> None:
        super().__init__(targets, words, options)
        self._slow_options = slow
        self._records = EventRecords(self.options.string_size, self.options.ring_size)
        wait_seconds = self.options.wait_seconds
        self._sampling = Sampling(
            targets,
            SamplingOptions(
                rate=slow.rate,
                mode=SamplingMode.WALL,
                engine=EngineChoice.BPF,
                each=1,
                wait_seconds=wait_seconds,
            ),
        )
        self._counts = StackCounts(Statistics("ns"))
        self._slow = SlowSpans(
            slow.least_ns, self._counts, part_of, slow.exemplars, slow.keeps_times
        )
        self._slow_engine: Engine | None = None
        self._passes: KernelPasses | None = None
        self._ended: list[tuple[Event, RubyContext]] = []
        self._ended_since: list[tuple[Event, RubyContext]] = []
        self._join_due = 0.0

    # -------------------------------------------------------------- selecting

    def plan(self, probes: Sequence[Probe]) -> None:
        super().plan(probes)
        if self._pairs:
            pair = next(iter(self._pairs))
            raise UsageError(
                f"{pair.series} is a pair of probes, and --slower-than needs a span",
                "Name a span: `rbtrace-py probes PID` lists them",
            )
        spans = [p for w in self.words for p in self._picked_spans(w, probes)]
        for probe in spans:
            if select.duration_operand(probe) != _DURATION_SLOT:
                raise UsageError(
                    f"{probe.full_name}: the first value is not a duration"
                )
        if not self._engines:
            self._records.plan(spans, self.may_grow, self.filter.compiled)

    def make_engines(self, attacher: Attacher) -> None:
        super().make_engines(attacher)
        self._sampling.__enter__()
        kernel = self._sampling.engine
        assert isinstance(kernel, KernelStacks)  # the options require it
        self._records.wall_offset = kernel.wall_offset  # measured once
        self._passes = KernelPasses(self._sampling, kernel, self._slow.add)
        self.notes.add(*self._sampling.notes)
        numbers = {
            "DURATIONS": self.durations_flag(self._records.slot_names),
            "LEAST": self._slow_options.least_ns,
            "FIBERS": 1,
            **kernel.walker.context_numbers,
        }
        self._slow_engine = self._records.make_engine(
            attacher, self._tracked, numbers, kernel.walker.context_maps
        )
        self._engines.append(self._slow_engine)
        self._kinds.append(_SLOW)

    @property
    def counting_engines(self) -> Sequence[Engine]:
        return [one for one in self._engines if one is not self._slow_engine]

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        if self._kinds[engine] != _SLOW:
            return super().requests(engine, probes)
        found = [p for w in self.words for p in self._picked_spans(w, probes)]
        return [
            AttachRequest(probe, 0, self._records.slots(probe))
            for probe in dict.fromkeys(found)
        ]

    # ---------------------------------------------------------------- joining

    def wait(self, seconds: float) -> None:
        assert self._passes is not None
        self._passes.advance(time.monotonic() + seconds, None)
        self._ended_since += self._records.read()
        if self._passes.is_due(self._join_due):
            self._join()
            self._join_due = time.monotonic() + _JOIN_SECONDS

    def _join(self) -> None:
        """Add the spans that had ended by the last call, after their samples.

        The samples of a child start when it is attached, a moment after its start.
        """
        assert self._passes is not None
        self._passes.settle()
        for event, context in self._ended:
            self._slow.end(_span(event, context))
        self._ended, self._ended_since = self._ended_since, []

    def refresh(self) -> None:
        super().refresh()
        assert self._passes is not None
        self._passes.refresh()

    def finish(self) -> None:
        super().finish()
        assert self._passes is not None
        self._ended += [*self._ended_since, *self._records.read()]
        self._ended_since = []
        self._passes.finish()
        self.notes.add(*self._sampling.notes)
        self._join()

    # ----------------------------------------------------------------- answer

    def snapshot(self) -> Result:
        return replace(super().snapshot(), slow=self._slow.part())

    def result_counters(self) -> dict[str, int]:
        found = super().result_counters()
        if self._slow_engine is not None:
            found["lost"] = self._slow_engine.counters()[Counter.LOST]
        found["lost_samples"] = self._sampling.statistics.failed
        found["incomplete_spans"] = self._slow.incomplete
        found["cut_samples"] = self._counts.statistics.truncated
        return found

    @property
    def exemplars(self) -> Sequence[Exemplar]:
        """The slowest spans in descending order."""
        return self._slow.part().exemplars

    @property
    def profile(self) -> Profile:
        """The stacks of slow spans, by their ns on the CPU and off it."""
        return Profile(self._counts, self._sampling.meta)

    def close(self) -> None:
        self._records.close()
        super().close()
        self._sampling.close()


def _span(event: Event, context: RubyContext) -> EndedSpan:
    probe = event.probe
    duration = event.values[_DURATION_SLOT]
    assert isinstance(duration, int)
    series = select.series_name(probe)
    return EndedSpan(series, event, duration, context.thread, context.fiber)
