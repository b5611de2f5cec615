"""Sessions whose result has groups: by series and, with ``--by``, by key."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.aggregate.histogram import FloatHistogram, Histogram, SignedHistogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.group_recorder import DENSE_SERIES, GroupRecorder, GroupShape
from rbtrace_py.bpf.probe_engine import MAX_SITES, Engine
from rbtrace_py.bpf.slots import Slot, operand_of, operand_slot
from rbtrace_py.errors import UsageError
from rbtrace_py.model.probes import MAX_SLOTS, Operand, Probe
from rbtrace_py.model.recorded_groups import By, RecordedGroup, RecordedValues
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.targets.targets import Targets

MAX_SERIES = MAX_SITES
"""Maximum number of series of a session, including series of globs."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program of ``bpf/programs/`` that records groups.

    Attributes:
        source: File name.
        values: Kind of the values that are distributed.
        own: Names of the operands in the program's own slots; empty names for operands
            that are never durations. The slots of the key and the filter follow.
        pairs: Number of pairs of probes.
    """

    source: str
    values: RecordedValues
    own: tuple[str, ...]
    pairs: int = 0


class Grouped(ProbeSession, CountingSession):
    """A probe session whose result has groups."""

    unit = ""
    operand: str | None = None

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(targets, words, options)
        self._by = By.NOTHING
        self._key_operands: dict[int, Operand | None] = {}
        self._recorder: GroupRecorder | None = None
        self._values = RecordedValues.NONE
        self._most_series = MAX_SERIES

    @abstractmethod
    def result_counters(self) -> dict[str, int]:
        """Return the counters of events that are in no group."""

    @property
    def by_name(self) -> str | None:
        return self.options.by

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the only target ends."""
        processes = list(self.targets.processes.values())
        if len(processes) == 1 and self.targets.command is None:
            processes[0].wait(seconds)
        else:
            time.sleep(seconds)

    def snapshot(self) -> Result:
        groups = self._groups()
        counters = self.result_counters()
        counted = sum(group.count for group in groups)
        counters.update(self.children_hint(counted, counters))
        return Result(
            self.command,
            self.targets.pids,
            tuple(self.series),
            self.started_ns,
            self.ended_ns,
            tuple(groups),
            counters,
            self.by_name,
            self.unit,
            self.operand,
            cost=self.cost,
            filter=self.options.filter,
        )

    def _groups(self) -> list[Group]:
        """Read the groups, in the order of the series."""
        if self._recorder is None:
            return []
        found = [_group(one, self._values) for one in self._recorder.groups()]
        if self._by is not By.NOTHING:
            found = [group for group in found if group.count]
        return sorted(found, key=lambda group: self.series[group.series])

    def settle_series(self, name: str, probe: Probe) -> None:
        """Number a series, and choose how to store its key, as read at ``probe``."""
        if name not in self.series and len(self.series) >= self._most_series:
            raise UsageError(
                f"more than {self._most_series} series", "Name fewer probes"
            )
        number = self.series_number(name)
        if self.by_name is None or number in self._key_operands:
            return
        operand = operand_of(probe, self.by_name)
        kind = By.TEXT if operand and operand.type.is_text else By.NUMBER
        if self._key_operands and kind is not self._by:
            raise UsageError(
                f"{self.by_name} is a string in some of the probes and a number in"
                " others",
                "Name fewer probes",
            )
        self._by = kind
        self._key_operands[number] = operand
        if self._recorder is not None:
            self._recorder.reserve_other(number)

    def with_key_and_filter(
        self, probe: Probe, own: Sequence[Slot]
    ) -> tuple[Slot, ...]:
        """Return all slots of a probe: the program's own, the key, the filter's."""
        key = [] if self.by_name is None else [operand_slot(probe, self.by_name)]
        return (*own, *key, *self.filter.slots(probe))

    def make_recording(self, attacher: Attacher, recipe: Recipe) -> Engine:
        """Make a recording engine, and add it to the session's engines.

        The session's engines record into the same maps, so ``--max-keys`` limits the
        keys of all engines together.
        """
        keys = () if self.by_name is None else (self.by_name,)
        names = (*recipe.own, *keys, *self.filter.operands)
        if len(names) > MAX_SLOTS:
            room = MAX_SLOTS - len(recipe.own) - len(keys)
            raise UsageError(
                f"the filter uses {len(self.filter.operands)} arguments, but only"
                f" {room} fit"
            )
        if self._recorder is None:
            self._values = recipe.values
            self._recorder = GroupRecorder(
                self._shape(recipe.values), self.series, self._key_operands.get
            )
        engine = self._recorder.make_engine(
            attacher,
            self._tracked,
            recipe.source,
            self.durations_flag(names),
            self.filter.compiled,
            recipe.pairs,
        )
        self._engines.append(engine)
        for number in self.series.values():
            self._recorder.reserve_other(number)
        return engine

    def _shape(self, values: RecordedValues) -> GroupShape:
        dense = self._by is By.NOTHING and not self.may_grow
        if values is not RecordedValues.NONE:
            dense = (
                dense
                and values is RecordedValues.DURATION
                and len(self.series) <= DENSE_SERIES
            )
        room = MAX_SERIES if self.may_grow else len(self.series)
        self._most_series = room
        return GroupShape(values, self._by, dense, room, self.options.max_keys)


_DISTRIBUTIONS = {
    RecordedValues.DURATION: Histogram,
    RecordedValues.INTEGER: SignedHistogram,
    RecordedValues.FLOAT: FloatHistogram,
}


def _group(found: RecordedGroup, values: RecordedValues) -> Group:
    distribution = None
    count = found.count
    if found.buckets is not None:
        distribution = _DISTRIBUTIONS[values](found.buckets)
        count = distribution.count
    return Group(
        found.series,
        found.key,
        count,
        found.total,
        distribution,
        found.is_other,
        found.truncated,
        found.raw,
        found.key_role,
    )


class Picking(Grouped):
    """A grouped session whose words name probes, not pairs."""

    def plan(self, probes: Sequence[Probe]) -> None:
        self.filter.settle([p for w in self.words for p in select.pick(w, probes)])
        self.check_words(probes)
        for probe in self.picked(probes):
            self.filter.check(probe)
            self.settle_series(self.series_name(probe), probe)

    def series_name(self, probe: Probe) -> str:
        return probe.measured_method or probe.full_name
