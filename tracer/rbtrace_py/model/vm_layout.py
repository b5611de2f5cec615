"""Description of the Ruby in a process, for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Offset(NamedTuple):
    """One member of a CRuby structure.

    Attributes:
        name: Our name of it.
        member: CRuby's name of it; empty if unknown.
        offset: Offset in bytes; for a bit field, the number of the bit.
        origin: ``file``, ``DWARF``, ``table``, or ``mined``.
        is_confirmed: True if the binary's code uses this offset.
    """

    name: str
    member: str
    offset: int
    origin: str
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class VmDescription:
    """The Ruby in a process, and the origin of each fact about it (``…_origin``).

    Attributes:
        base: Difference between addresses in the process and in the file.
        vm: Address of the VM in the process.
        symbols: Address of the symbol table in the process; None if it was not found.
    """

    pid: int
    ruby_version: str
    version_origin: str
    file: str
    build_id: str
    base: int
    vm: int
    vm_origin: str
    symbols: int | None
    symbols_origin: str
    traits: Mapping[str, object]
    offsets: tuple[Offset, ...]
    notes: tuple[str, ...]
