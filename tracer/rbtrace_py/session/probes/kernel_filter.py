"""``--filter`` in the kernel: its text, its slots, its strings."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.maps import MapSpec
from rbtrace_py.bpf.program import Program
from rbtrace_py.bpf.slots import Slot, operand_slot
from rbtrace_py.errors import UsageError
from rbtrace_py.model.probes import Operand, OperandType, Probe
from rbtrace_py.session.probes.filters import (
    CompiledFilter,
    compile_filter,
    parse_filter,
)

_STRING = 64
"""Bytes of a constant, as in ``struct text64`` of ``programs/common.h``."""


class KernelFilter:
    """A filter, compiled for the first probes it is settled on.

    text: None is the filter that lets everything through
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._compiled: CompiledFilter | None = None

    @property
    def is_set(self) -> bool:
        return self._compiled is not None

    @property
    def operands(self) -> tuple[str, ...]:
        """Names it looks at, in the order of their slots."""
        return self._compiled.operands if self._compiled else ()

    def settle(self, probes: Sequence[Probe]) -> None:
        """Parse against the probes it will run on; raises FilterError."""
        if self._text is None or self._compiled is not None or not probes:
            return
        operands: dict[str, OperandType | Operand] = {}
        for probe in probes:
            for operand in probe.operands:
                operands.setdefault(operand.name, operand)
        self._compiled = compile_filter(parse_filter(self._text, operands))

    def check(self, probe: Probe) -> None:
        """UsageError unless it means the same on this probe's operands."""
        if self._compiled is None or self._text is None:
            return
        operands = {operand.name: operand for operand in probe.operands}
        if compile_filter(parse_filter(self._text, operands)) != self._compiled:
            raise UsageError(
                f"the filter has another meaning on {probe.full_name}",
                f"Name fewer probes; this one is {probe.signature}",
            )

    def slots(self, probe: Probe) -> tuple[Slot, ...]:
        return tuple(operand_slot(probe, name) for name in self.operands)

    def prelude(self) -> str:
        """The one text that is generated for a program: the filter as C."""
        if self._compiled is None:
            return ""
        text = f"#define FILTER ({self._compiled.expression})\n"
        text += f"#define FILTER_SLOTS {len(self.operands)}\n"
        if self._compiled.strings:
            text += f"#define FILTER_STRINGS {len(self._compiled.strings)}\n"
        return text

    def maps(self) -> dict[str, MapSpec]:
        if self._compiled is None or not self._compiled.strings:
            return {}
        count = len(self._compiled.strings)
        return {"strings": MapSpec(sys_.MAP_TYPE_ARRAY, 4, _STRING, count)}

    def fill(self, program: Program) -> None:
        """Put the constants where the program looks for them."""
        if self._compiled is None:
            return
        for number, string in enumerate(self._compiled.strings):
            program.maps["strings"].put(
                number.to_bytes(4, "little"), string.ljust(_STRING, b"\0")
            )
