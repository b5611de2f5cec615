"""Count of probe hits."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.probe_engine import AttachRequest
from rbtrace_py.model.probes import Probe
from rbtrace_py.model.recorded_groups import RecordedValues
from rbtrace_py.session.probes.grouped import Picking, Recipe


class Count(Picking):
    """Counts hits in the kernel."""

    command = "count"

    def make_engines(self, attacher: Attacher) -> None:
        recipe = Recipe("values.c", RecordedValues.NONE, ())
        self.make_recording(attacher, recipe)

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        return [
            AttachRequest(
                probe,
                self.series[self.series_name(probe)],
                self.with_key_and_filter(probe, ()),
            )
            for probe in self.picked(probes)
        ]

    def result_counters(self) -> dict[str, int]:
        return self.counters()
