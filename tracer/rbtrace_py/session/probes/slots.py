"""Values that a program gets at a hit: operands, the process, the thread."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.bpf.abi import Slot, SlotKind
from rbtrace_py.model.probes import Operand, Probe, Site

SPECIAL = {"pid": SlotKind.PID, "tid": SlotKind.TID}
"""Names that every event has; an operand of the same name takes precedence."""


DURATION_NAME = "duration_ns"
"""Name that the gem gives it: probes that come later may have one."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The contents of a slot at every site: an operand by index, or a special."""

    operand: int | None = None
    special: SlotKind | None = None
    is_text: bool = False
    is_duration: bool = False

    def at(self, site: Site) -> Slot:
        """The slot as it is filled at one site."""
        if self.special is not None:
            return Slot(special=self.special)
        assert self.operand is not None
        locations = site.locations
        place = locations[self.operand] if self.operand < len(locations) else None
        return Slot(place, is_text=self.is_text, is_duration=self.is_duration)


def operand_slot(probe: Probe, name: str) -> SlotPlan:
    """The slot of an operand by name, or of ``pid`` or ``tid``.

    A duration that is not known is nil in it.
    """
    index = probe.operand(name)
    if index is None:
        return SlotPlan(special=SPECIAL[name])
    operand = probe.operands[index]
    return SlotPlan(
        operand=index,
        is_text=operand.type.is_text,
        is_duration=operand.is_duration and operand.size == 8,
    )


def operand_of(probe: Probe, name: str) -> Operand | None:
    """The operand of that name; None for ``pid`` and ``tid``."""
    index = probe.operand(name)
    return None if index is None else probe.operands[index]
