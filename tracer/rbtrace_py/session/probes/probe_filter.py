"""The ``--filter`` of a query: parsed and compiled for the probes that it selects."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.bpf.slots import Slot
from rbtrace_py.errors import UsageError
from rbtrace_py.model.probes import Operand, OperandType, Probe
from rbtrace_py.session.probes.filters import parse_filter
from rbtrace_py.session.probes.filters.ccode import compile_filter


class ProbeFilter:
    """A filter, compiled for the first probes.

    Attributes:
        compiled: The compiled filter. None without a filter, and before ``settle``.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self.compiled: CompiledFilter | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands that the filter reads, in the order of their slots."""
        return self.compiled.operands if self.compiled else ()

    def settle(self, probes: Sequence[Probe]) -> None:
        """Compile the filter for probes, unless it was compiled before.

        Raises:
            FilterError: The filter is invalid for the operands of ``probes``.
        """
        if self._text is None or self.compiled is not None or not probes:
            return
        operands: dict[str, OperandType | Operand] = {}
        for probe in probes:
            for operand in probe.operands:
                operands.setdefault(operand.name, operand)
        self.compiled = compile_filter(parse_filter(self._text, operands))

    def check(self, probe: Probe) -> None:
        """Check that the filter has the same meaning for a probe.

        Raises:
            UsageError: It has another meaning.
        """
        if self.compiled is None or self._text is None:
            return
        operands = {operand.name: operand for operand in probe.operands}
        if compile_filter(parse_filter(self._text, operands)) != self.compiled:
            raise UsageError(
                f"the filter has another meaning on {probe.full_name}",
                f"Name fewer probes; this one is {probe.signature}",
            )

    def slots(self, probe: Probe) -> tuple[Slot, ...]:
        """Return the slots of the filter's operands at a probe."""
        return self.compiled.slots(probe) if self.compiled else ()
