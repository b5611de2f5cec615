"""Slots of a probe site: the values that a program reads at each hit.

A slot is an operand of the probe, the pid, or the tid. The same program runs at all
sites, so ``pack_site`` describes in a ``struct site`` where each site keeps the values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from rbtrace_py.bpf.abi import OPERAND, SITE
from rbtrace_py.model.probes import (
    NIL_BOOL,
    NIL_FLOAT_BITS,
    NIL_INTEGER,
    Location,
    LocationKind,
    Operand,
    OperandType,
    Probe,
    Site,
)

_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_CALL_REGISTERS = 6
"""Registers that hold arguments of a call: x86-64 keeps the others on the stack."""


class SlotKind(IntEnum):
    """Kinds of ``struct operand`` in addition to ``model.probes.LocationKind``."""

    MISSING = 3
    PID = 4
    TID = 5


SPECIAL = {"pid": SlotKind.PID, "tid": SlotKind.TID}
"""Names that every event has; an operand of the same name takes precedence."""

DURATION_NAME = "duration_ns"
"""The gem's name for durations: probes that are defined later may have one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One value that a program reads, at any site of a probe.

    Attributes:
        operand: Index of the probe's operand.
        special: The value instead of an operand.
        is_text: True if the operand is a pointer to a string, which is read, too.
        is_duration: True for the duration of a span. It is nil if the span began
            before the probe was traced.
    """

    operand: int | None = None
    special: SlotKind | None = None
    is_text: bool = False
    is_duration: bool = False

    def location(self, site: Site) -> Location | None:
        """Return where a site keeps the operand, or None if the slot has no operand."""
        if self.operand is None or self.operand >= len(site.locations):
            return None
        return site.locations[self.operand]

    def pack(self, site: Site) -> bytes:
        """Return ``struct operand`` of ``programs/common.h``."""
        where = self.location(site)
        if where is None or where.is_float:
            kind = self.special or SlotKind.MISSING
            return OPERAND.pack(int(kind), 0, 0, 0, 8, 0, 0, 0, 0)
        index = 0 if where.index is None else where.index + 1
        return OPERAND.pack(
            int(where.kind),
            where.register or 0,
            index,
            where.scale.bit_length() - 1,
            where.size,
            where.signed,
            self.is_text,
            self.is_duration,
            (where.value & _MASK) - ((where.value & _SIGN) << 1),
        )


EMPTY_SLOT = Slot(special=SlotKind.MISSING)
"""A slot without a value."""


def operand_slot(probe: Probe, name: str) -> Slot:
    """Return the slot of an operand by name, or of ``pid`` or ``tid``."""
    index = probe.operand(name)
    if index is None:
        return Slot(special=SPECIAL[name])
    operand = probe.operands[index]
    return Slot(
        operand=index,
        is_text=operand.type.is_text,
        is_duration=operand.is_duration and operand.size == 8,
    )


def operand_of(probe: Probe, name: str) -> Operand | None:
    """Return the operand of that name; None for ``pid`` and ``tid``."""
    index = probe.operand(name)
    return None if index is None else probe.operands[index]


def operand_value(raw: int, operand: Operand | None) -> int | float | bool | None:
    """Return the value of a slot that is not a string.

    Args:
        raw: The slot's 8 bytes, as an unsigned integer.
        operand: The operand in the slot; None for the pid or the tid.
    """
    if operand is None:
        return raw
    if operand.type is OperandType.FLOAT:
        if raw == NIL_FLOAT_BITS:
            return None
        return float(struct.unpack("<d", raw.to_bytes(8, "little"))[0])
    if operand.type is OperandType.BOOL:
        return None if raw == NIL_BOOL else bool(raw)
    signed = raw - (1 << 64) if raw >> 63 else raw
    if operand.type in (OperandType.INTEGER, OperandType.NIL):
        return None if signed == NIL_INTEGER and operand.size == 8 else signed
    return signed if operand.signed else raw


def pack_site(
    site: Site, series: int, slots: Sequence[Slot], role: int = 0, is_off: bool = False
) -> bytes:
    """Return ``struct site`` of ``programs/common.h``.

    Args:
        site: The site, with the locations of the operands.
        series: Series number of its hits.
        slots: At most ``MAX_SLOTS`` slots.
        role: The site's end of a pair (``programs/pairs.c``).
        is_off: True if its hits no longer count.
    """
    packed = b"".join(slot.pack(site) for slot in slots)
    bulk = _bulk([slot.location(site) for slot in slots])
    return SITE.pack(series, role, *bulk, is_off, packed)


def _bulk(locations: Sequence[Location | None]) -> tuple[int, int]:
    """(first, count) of adjacent operands on the stack, which one read fetches."""
    on_stack = locations[_CALL_REGISTERS:]
    run = 0
    for i, here in enumerate(on_stack):
        first = on_stack[0]
        if (
            here is None
            or first is None
            or here.kind is not LocationKind.MEMORY
            or here.index is not None
            or here.size != 8
            or here.register != first.register
            or here.value != first.value + 8 * i
        ):
            break
        run += 1
    return (_CALL_REGISTERS, run) if run > 1 else (0, 0)
