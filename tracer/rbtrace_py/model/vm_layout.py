"""Description of the Ruby in a process, for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Offset(NamedTuple):
    """One member of one structure of CRuby's.

    name: ours; member: CRuby's words, "" where they are not known
    offset: in bytes, of a bit field its number
    origin: ``file``, ``DWARF``, ``table`` or ``mined``
    is_confirmed: does the binary's own code use this offset?
    """

    name: str
    member: str
    offset: int
    origin: str
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class VmDescription:
    """A Ruby in a process, and how each thing was learnt of it (``…_origin``).

    base: what the file's addresses were moved by; vm, symbols: addresses in the
    process, symbols None where the table was not found
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
