"""Probes, shared by all layers: operands, sites, files.

Plain values; nothing here reads a process or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class OperandType(IntEnum):
    """Ruby type of an operand, numbered as in the ``rbtrace`` note."""

    UNKNOWN = 0
    INTEGER = 1
    STRING = 2
    SYMBOL = 3
    FLOAT = 4
    BOOL = 5
    NIL = 6  # unknown yet: the program has passed only nil so far

    @property
    def is_text(self) -> bool:
        """True if the operand is a pointer to a NUL-terminated string."""
        return self in (OperandType.STRING, OperandType.SYMBOL)


class OperandRole(IntEnum):
    """The role of an operand, numbered as in the ``rbtrace`` note."""

    ARGUMENT = 0
    DURATION = 1
    OUTCOME = 2
    RESULT = 3
    UNKNOWN = 255


class ProbeRole(IntEnum):
    """The role of a probe, numbered as in the ``rbtrace`` note."""

    EVENT = 0
    SPAN_BEGIN = 1
    SPAN_END = 2


MAX_SLOTS = 16
"""Maximum number of values that a BPF program reads at a hit."""

MAX_PAIRS = 16
"""Maximum number of pairs of probes to time at once."""

NIL_INTEGER = -(1 << 63)
NIL_FLOAT_BITS = 0x7FF8726274726163
NIL_BOOL = 2

OUTCOMES = {0: "returned", 1: "raised", 2: "thrown"}
"""Names of a span's outcomes, by the value of its outcome operand."""

DURATION_UNTRACED = -1
"""Duration of a span that began while it was untraced."""


class LocationKind(IntEnum):
    """Kinds of locations of an operand, numbered as in the BPF programs."""

    CONSTANT = 0
    REGISTER = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class Location:
    """Location of an operand at a site, from the ``stapsdt`` note's argument string.

    Attributes:
        kind: Kind of location.
        size: Size of the operand: 1, 2, 4, or 8 bytes.
        signed: True if the operand is signed.
        register: Number of the register in the order of ``pt_regs``
            (``linux.operands``), not in DWARF's; None without a register.
        value: The constant, or the displacement in bytes of a memory operand.
        index: Number of the index register, like ``register``; None without one.
        scale: Factor of the index register.
        is_float: True if the operand is a floating-point number.
    """

    kind: LocationKind
    size: int
    signed: bool
    register: int | None = None
    value: int = 0
    index: int | None = None
    scale: int = 1
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """The properties of an operand that are the same at every site."""

    name: str
    type: OperandType = OperandType.UNKNOWN
    role: OperandRole = OperandRole.ARGUMENT
    signed: bool = False
    size: int = 8

    @property
    def is_duration(self) -> bool:
        """True if the operand is a span's duration in nanoseconds."""
        return self.role is OperandRole.DURATION and self.type is OperandType.INTEGER


@dataclass(frozen=True, slots=True)
class Site:
    """One place in a file where a probe fires.

    Attributes:
        address: Virtual address in the file.
        offset: File offset at which to attach a uprobe.
        semaphore_offset: File offset of the probe's semaphore; 0 without one.
        locations: Locations of the operands; None if a location could not be parsed.
    """

    address: int
    offset: int
    semaphore_offset: int
    locations: tuple[Location | None, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """The identity of a file that a process maps.

    Attributes:
        device: Device number.
        inode: Inode number.
        path: Path in ``/proc/PID/maps``, only for display.
        is_image: True for files made by the gem, which contain our notes.
    """

    device: int
    inode: int
    path: str
    is_image: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return (self.device, self.inode)


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of one file, with all its sites.

    ``method`` is the Ruby name of the measured method (``Shop::Till#pay!``), or None.
    """

    provider: str
    name: str
    binary: Binary
    sites: tuple[Site, ...]
    operands: tuple[Operand, ...] = ()
    role: ProbeRole = ProbeRole.EVENT
    method: str | None = None

    @property
    def measured_method(self) -> str | None:
        """The method, if the probe ends its span: a method's name means that probe."""
        return self.method if self.role is ProbeRole.SPAN_END else None

    @property
    def full_name(self) -> str:
        return f"{self.provider}:{self.name}"

    @property
    def span_name(self) -> str | None:
        """Name of the span that this probe begins or ends, without the provider."""
        suffix = {ProbeRole.SPAN_BEGIN: "__begin", ProbeRole.SPAN_END: "__end"}
        ending = suffix.get(self.role)
        if ending and self.name.endswith(ending) and len(self.name) > len(ending):
            return self.name[: -len(ending)]
        return None

    @property
    def signature(self) -> str:
        """``shop:checkout(id: Integer, sku: String)``."""
        known = [o for o in self.operands if o.role is not OperandRole.UNKNOWN]
        return f"{self.full_name}({', '.join(map(describe_operand, known))})"

    @property
    def argument_names(self) -> list[str]:
        """Operand names; the second operand with the same name is ``name#2``."""
        seen: dict[str, int] = {}
        names = []
        for operand in self.operands:
            number = seen[operand.name] = seen.get(operand.name, 0) + 1
            names.append(operand.name if number == 1 else f"{operand.name}#{number}")
        return names

    def operand(self, name: str) -> int | None:
        """Return the index of the operand called ``name``, or None."""
        for index, operand in enumerate(self.operands):
            if operand.name == name:
                return index
        return None


_TYPE_NAMES = {
    OperandType.INTEGER: "Integer",
    OperandType.STRING: "String",
    OperandType.SYMBOL: "Symbol",
    OperandType.FLOAT: "Float",
    OperandType.BOOL: "bool",
    OperandType.NIL: "nil",
}


def describe_operand(operand: Operand) -> str:
    """Return ``id: Integer``, or if the type is unknown, the size: ``arg0: u64``."""
    kind = _TYPE_NAMES.get(operand.type)
    if kind is None:
        kind = f"{'s' if operand.signed else 'u'}{operand.size * 8}"
    return f"{operand.name}: {kind}"
