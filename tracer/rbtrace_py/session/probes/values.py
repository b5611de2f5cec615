"""Distribution of an argument's values."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.probe_engine import AttachRequest
from rbtrace_py.bpf.slots import Slot, operand_slot
from rbtrace_py.errors import UsageError
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import OperandRole, OperandType, Probe
from rbtrace_py.model.recorded_groups import RecordedValues
from rbtrace_py.session.probes.grouped import Picking, Recipe
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.targets.targets import Targets

_NUMBERS = (OperandType.UNKNOWN, OperandType.INTEGER, OperandType.NIL)


class ValuesOf(Picking):
    """The distribution of one operand's values, recorded in the kernel.

    Strings, symbols, and booleans have no distribution: their values are counted as
    with ``--by``.
    """

    command = "values"

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        argument: str,
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(targets, words, options)
        self.operand = self.argument = argument
        self._type: OperandType | None = None
        self._is_duration = self._is_result = False
        self._nils = 0

    @property
    def is_counted(self) -> bool:
        return self._type in (OperandType.STRING, OperandType.SYMBOL, OperandType.BOOL)

    @property
    def by_name(self) -> str | None:
        return self.argument if self.is_counted else self.options.by

    def missing_operands(self, probe: Probe) -> list[str]:
        missing = super().missing_operands(probe)
        if probe.operand(self.argument) is None:
            missing.insert(0, self.argument)
        return missing

    def plan(self, probes: Sequence[Probe]) -> None:
        self.check_words(probes)
        for probe in self.picked(probes):
            self._settle_type(probe)
        if self.is_counted and self.options.by not in (None, self.argument):
            raise UsageError(
                f"{self.argument} is not a number: its values are counted and"
                f" cannot be grouped by {self.options.by} as well"
            )
        super().plan(probes)

    def _settle_type(self, probe: Probe) -> None:
        index = probe.operand(self.argument)
        assert index is not None
        operand = probe.operands[index]
        self._is_result = operand.role is OperandRole.RESULT
        found, is_duration = operand.type, operand.is_duration
        if self._type is None:
            self._type, self._is_duration = found, is_duration
            self.unit = "integer" if found in _NUMBERS else found.name.lower()
        elif found is not self._type or is_duration is not self._is_duration:
            raise UsageError(
                f"{self.argument} has another type in {probe.full_name}",
                "Name fewer probes",
            )
        names_ns = found is OperandType.INTEGER and self.argument.endswith("_ns")
        if is_duration or names_ns:
            self.unit = "ns"

    def make_engines(self, attacher: Attacher) -> None:
        if self.is_counted:
            recipe = Recipe("values.c", RecordedValues.NONE, ())
        else:
            is_float = self._type is OperandType.FLOAT
            kind = RecordedValues.FLOAT if is_float else RecordedValues.INTEGER
            recipe = Recipe("values.c", kind, (self.argument,))
        self.make_recording(attacher, recipe)

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        return [
            AttachRequest(
                probe,
                self.series[self.series_name(probe)],
                self.with_key_and_filter(probe, self._own_slots(probe)),
            )
            for probe in self.picked(probes)
        ]

    def _own_slots(self, probe: Probe) -> list[Slot]:
        if self.is_counted:
            return []
        return [operand_slot(probe, self.argument)]

    def result_counters(self) -> dict[str, int]:
        missing = Counter.RUNNING_AT_ATTACH if self._is_duration else Counter.NIL
        found = self.counters(missing)
        self._nils = found.get("nil", 0)
        return found

    @property
    def hint(self) -> str:
        """Hint that nil results may belong to spans that began before tracing."""
        if not (self._is_result and self._nils):
            return ""
        return "a result is nil if it was not set, or its span began before tracing did"
