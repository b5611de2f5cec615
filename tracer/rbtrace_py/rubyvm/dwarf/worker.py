"""A separate program that looks up members in the DWARF of a file.

The file is a target's. DWARF is a language with references, so a malicious file can
make any reader run long or use much memory. It is therefore read in a process that
limits itself. If that process dies, there is just no answer.

Standard input is one JSON object: ``fd`` (of the file), ``members``, ``units`` (base
names of source files, in search order), ``memory`` (bytes), ``seconds`` (of CPU),
``path`` (of pyelftools). Standard output is one JSON object with ``[bit offset, size in
bits]`` for each member found; the size is 0 unless it is a bit field. This file imports
nothing from the package.
"""

from __future__ import annotations

import json
import os
import posixpath
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

_STRUCTURES = ("DW_TAG_structure_type", "DW_TAG_union_type", "DW_TAG_class_type")
_PEELED = (
    "DW_TAG_typedef",
    "DW_TAG_const_type",
    "DW_TAG_volatile_type",
    "DW_TAG_atomic_type",
)
_DEEPEST = 32
"""Maximum nesting of typedefs, structures, and imports."""


class Missing(Exception):
    """A name that the DWARF read so far does not define."""


class Declared(Missing):
    """A structure that is only declared; ``args[0]`` is its name."""


class Types:
    """The types of some units by name; units are read on demand."""

    def __init__(self, units: Iterable[Any]) -> None:
        self._units = iter(units)
        self._named: dict[str, list[Any]] = {}
        self._imported: set[int] = set()

    def read_next(self) -> bool:
        """Read one more unit; return False after the last one."""
        for unit in self._units:
            self._read(unit.get_top_DIE(), 0)
            return True
        return False

    def _read(self, top: Any, depth: int) -> None:
        for die in top.iter_children():
            if die.tag == "DW_TAG_imported_unit" and depth < _DEEPEST:
                self._import(die, depth)
            elif die.tag == "DW_TAG_typedef" or die.tag in _STRUCTURES:
                name = _name(die)
                if name is not None:
                    self._named.setdefault(name, []).append(die)

    def _import(self, die: Any, depth: int) -> None:
        """Read a partial unit that several units share, as dwz makes them."""
        with suppress(Exception):
            shared = die.get_DIE_from_attribute("DW_AT_import")
            if shared.offset not in self._imported:
                self._imported.add(shared.offset)
                self._read(shared, depth + 1)

    def structure(self, name: str) -> Any:
        """Return the first structure with members of this name, or of this typedef."""
        other = name
        for die in self._named.get(name, ()):
            try:
                return _peel(die)
            except Declared as declared:
                other = declared.args[0]
            except Missing:
                continue
        for die in self._named.get(other, ()) if other != name else ():
            with suppress(Missing):
                return _peel(die)
        raise Missing(name)


def _name(die: Any) -> str | None:
    attribute = die.attributes.get("DW_AT_name")
    return None if attribute is None else _text(attribute.value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _peel(die: Any) -> Any:
    for _ in range(_DEEPEST):
        if die.tag in _STRUCTURES:
            if "DW_AT_signature" in die.attributes:
                return die.get_DIE_from_attribute("DW_AT_signature")
            if "DW_AT_declaration" in die.attributes:
                raise Declared(_name(die) or "")
            return die
        if die.tag not in _PEELED or "DW_AT_type" not in die.attributes:
            raise Missing("no structure")
        die = die.get_DIE_from_attribute("DW_AT_type")
    raise Missing("typedefs without end")


def find(types: Types, member: str) -> tuple[int, int]:
    """Return the bit offset and the size in bits (0: not a bit field) of ``member``.

    It is ``structure.member[.member…]``, ``sizeof structure``, or a sum of these with
    `` + `` between. Raises Missing.
    """
    offset, bits = 0, 0
    for term in member.split(" + "):
        if term.startswith("sizeof "):
            structure = types.structure(term[len("sizeof ") :])
            offset += 8 * _number(structure, "DW_AT_byte_size")
        else:
            name, *path = term.split(".")
            into, bits = _walk(types.structure(name), path)
            offset += into
    return offset, bits


def _walk(structure: Any, path: list[str]) -> tuple[int, int]:
    offset, bits = 0, 0
    for place, name in enumerate(path):
        member, into = _member(structure, name, 0)
        offset += into
        if place + 1 < len(path):
            structure = _peel(member.get_DIE_from_attribute("DW_AT_type"))
        elif "DW_AT_bit_size" in member.attributes:
            bits = _number(member, "DW_AT_bit_size")
    return offset, bits


def _member(structure: Any, name: str, depth: int) -> tuple[Any, int]:
    """Return a member and its bit offset, searching anonymous members too."""
    for child in structure.iter_children():
        if child.tag != "DW_TAG_member":
            continue
        found = _name(child)
        if found == name:
            return child, _bit_offset(child)
        if found is None and depth < _DEEPEST:
            with suppress(Missing):
                inner = _peel(child.get_DIE_from_attribute("DW_AT_type"))
                member, into = _member(inner, name, depth + 1)
                return member, _bit_offset(child) + into
    raise Missing(name)


def _bit_offset(member: Any) -> int:
    """Return a bit offset. DWARF 2 and 3 count bit fields from the highest bit."""
    attributes = member.attributes
    if "DW_AT_data_bit_offset" in attributes:
        return _number(member, "DW_AT_data_bit_offset")
    offset = 0
    if "DW_AT_data_member_location" in attributes:
        offset = 8 * _number(member, "DW_AT_data_member_location")
    if "DW_AT_bit_offset" in attributes:
        size = attributes.get("DW_AT_byte_size")
        kind = member.get_DIE_from_attribute("DW_AT_type")
        bytes_ = size.value if size else _number(_sized(kind), "DW_AT_byte_size")
        offset += 8 * bytes_ - _number(member, "DW_AT_bit_offset")
        offset -= _number(member, "DW_AT_bit_size")
    return offset


def _sized(kind: Any) -> Any:
    for _ in range(_DEEPEST):
        if "DW_AT_byte_size" in kind.attributes:
            return kind
        kind = kind.get_DIE_from_attribute("DW_AT_type")
    raise Missing("a type without a size")


def _number(die: Any, attribute: str) -> int:
    """Return a constant; older compilers write a member's offset as an expression."""
    found = die.attributes.get(attribute)
    if found is None:
        raise Missing(attribute)
    if isinstance(found.value, int):
        return found.value
    return _plus_uconst(bytes(found.value))


def _plus_uconst(expression: bytes) -> int:
    """Evaluate a DW_OP_plus_uconst (0x23) with its ULEB128."""
    if not 2 <= len(expression) <= 8 or expression[0] != 0x23:
        raise Missing("an expression")
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(expression[1:]))


def in_order(units: Iterable[Any], wanted: list[str]) -> list[Any]:
    """Return the units whose source file is ``wanted``, in that order."""
    found: dict[str, list[Any]] = {}
    for unit in units:
        name = posixpath.basename(_name(unit.get_top_DIE()) or "")
        if name in wanted:
            found.setdefault(name, []).append(unit)
    return [unit for name in wanted for unit in found.get(name, ())]


def look_up(types: Types, members: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the members found, reading units only while some are missing."""
    missing = list(members)
    while missing and types.read_next():
        still: list[str] = []
        for member in missing:
            try:
                yield member, find(types, member)
            except Missing:
                still.append(member)
        missing = still


def _limit(request: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
    seconds = request["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    """Answer one request; return 1 if the file has no readable DWARF."""
    request = json.load(sys.stdin)
    sys.path.append(request["path"])
    _limit(request)
    from elftools.elf.elffile import ELFFile

    with os.fdopen(request["fd"], "rb") as stream:
        file = ELFFile(stream)
        if not file.has_dwarf_info(strict=True):
            return 1
        info = file.get_dwarf_info(follow_links=False)
        units = in_order(info.iter_CUs(), request["units"])
        # Type units (DWARF 4) contain one type each, which several units share.
        shared = info.iter_TUs() if units and info.has_debug_types() else ()
        types = Types(chain(units, shared))
        json.dump(dict(look_up(types, request["members"])), sys.stdout)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        # Malicious files may make pyelftools raise any exception.
        sys.exit(f"{type(error).__name__}: {error}"[:200])
