"""All hits, with their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.event_records import EventRecords
from rbtrace_py.bpf.probe_engine import AttachRequest
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.events import Event
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.event_session import EventSession
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.targets.targets import Targets


class Trace(ProbeSession, EventSession[Event]):
    """Events in the kernel's order."""

    command = "trace"

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(targets, words, options)
        self._records = EventRecords(self.options.string_size, self.options.ring_size)

    def plan(self, probes: Sequence[Probe]) -> None:
        self.filter.settle([p for w in self.words for p in select.pick(w, probes)])
        self.check_words(probes)
        for probe in self.picked(probes):
            self.filter.check(probe)
        if not self._engines:
            self._records.plan(self.picked(probes), self.may_grow, self.filter.compiled)

    def make_engines(self, attacher: Attacher) -> None:
        durations = self.durations_flag(self._records.slot_names)
        numbers = {"DURATIONS": durations, "LEAST": 0, "FIBERS": 0, "FSBASE_OFFSET": 0}
        engine = self._records.make_engine(attacher, self._tracked, numbers)
        self._engines.append(engine)

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        return [
            AttachRequest(probe, 0, self._records.slots(probe))
            for probe in self.picked(probes)
        ]

    def events(self, seconds: float) -> Iterator[Event]:
        self._records.wait(seconds)
        for event, _ in self._records.read():
            yield event

    def drain(self) -> Iterator[Event]:
        self.finish()
        yield from self.events(0.0)

    def result_counters(self) -> dict[str, int]:
        """Return the number of ``seen`` events, and of missing ones (docs/formats)."""
        found = self.counters(Counter.SEEN, Counter.LOST)
        found.pop("no_room")
        return {**found, **self.children_hint(found["seen"], found)}

    def close(self) -> None:
        self._records.close()
        super().close()
