"""A ``--filter`` as C for the kernel: its expression, slots, and strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import TEXT64
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.slots import Slot, operand_slot
from rbtrace_py.model.probes import Probe


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A filter for the kernel.

    Attributes:
        expression: C text that uses only integers, operators, and these macros:
            ``SLOT(i)`` is the raw u64 of operand number i.
            ``FKEY(x)`` is the s64 ``float_order(x)`` of a double's bits.
            ``IS_NAN(x)`` is true if x has the bits of a NaN.
            ``STREQ(i, k)`` is true if the string at SLOT(i) equals string number k.
            ``STRPREFIX(i, k)`` is true if it begins with string number k.
        operands: Names in the order of slots. A name that the probe does not have is
            one of ``PSEUDO_OPERANDS``.
        strings: Constants without their NUL, in the order of their numbers.
    """

    expression: str
    operands: tuple[str, ...]
    strings: tuple[bytes, ...]

    def slots(self, probe: Probe) -> tuple[Slot, ...]:
        """Return the slots of the operands at a probe."""
        return tuple(operand_slot(probe, name) for name in self.operands)

    def prelude(self) -> str:
        """Return the definitions that precede a program's source."""
        text = f"#define FILTER ({self.expression})\n"
        text += f"#define FILTER_SLOTS {len(self.operands)}\n"
        if self.strings:
            text += f"#define FILTER_STRINGS {len(self.strings)}\n"
        return text

    def maps(self) -> dict[str, MapSpec]:
        """Return the maps that a program needs for the filter."""
        if not self.strings:
            return {}
        kind, count = sys_.MAP_TYPE_ARRAY, len(self.strings)
        return {"strings": MapSpec(kind, 4, TEXT64.size, count)}

    def put_strings(self, maps: Mapping[str, Map]) -> None:
        """Write the constants into a program's maps."""
        for number, string in enumerate(self.strings):
            maps["strings"].put(number.to_bytes(4, "little"), TEXT64.pack(string))
