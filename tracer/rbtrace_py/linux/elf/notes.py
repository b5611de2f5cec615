"""USDT probes in ELF notes: ``stapsdt`` notes and the gem's own.

The first kind is systemtap's (``sys/sdt.h``). docs/probes.md specifies the second.
Malformed notes are skipped and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.reader import PF_W, PF_X, SHT_NOBITS, ElfFile, Section
from rbtrace_py.linux.text import safe_text
from rbtrace_py.model.probes import Operand, OperandRole, OperandType, ProbeRole

STAPSDT_SECTION = b".note.stapsdt"
IMAGE_SECTION = b".note.rbtrace"
_BASE_SECTION = b".stapsdt.base"

_MAX_NAME = 256
_MAX_ARGUMENTS = 4096
_STAPSDT_TYPE = 3
_IMAGE_TYPE = 1
_IMAGE_VERSION = 1
_WORD = (1 << 64) - 1

_NOTE = struct.Struct("<III")
_ADDRESSES = struct.Struct("<QQQ")
_IMAGE_HEAD = struct.Struct("<QHBB")


@dataclass(frozen=True, slots=True)
class StapsdtNote:
    """One probe site.

    The strings are safe to print. ``pc`` is the note's value; the other addresses are
    adjusted for prelink. ``address`` is a virtual address in the file. ``offset`` and
    ``semaphore_offset`` are file offsets in bytes (semaphore 0: none).
    """

    provider: str
    name: str
    arguments: str
    pc: int
    address: int
    offset: int
    semaphore_offset: int


@dataclass(frozen=True, slots=True)
class ImageNote:
    """The gem's note for the probe whose ``stapsdt`` note has this ``pc``."""

    pc: int
    role: ProbeRole
    operands: tuple[Operand, ...]
    method: str | None = None


@dataclass(slots=True)
class ElfNotes:
    """All notes of one file; ``images`` by pc; ``malformed`` is a number of notes."""

    is_image: bool = False
    sites: list[StapsdtNote] = field(default_factory=list)
    images: dict[int, ImageNote] = field(default_factory=dict)
    malformed: int = 0
    truncated: bool = False


def read_notes(elf: ElfFile) -> ElfNotes:
    """Read both kinds of notes, until the file's budget is used up (``truncated``).

    The gem appends its own note before the ``stapsdt`` note. The ``stapsdt`` section is
    therefore read first, so that each of its notes has a companion.

    Raises:
        BadElf: A note section has invalid bounds.
    """
    notes = ElfNotes(is_image=bool(elf.named(IMAGE_SECTION)))
    shift = _Prelink(elf)
    for owner, kind, body in _all_notes(elf, STAPSDT_SECTION, notes):
        if owner == b"stapsdt" and kind == _STAPSDT_TYPE:
            _keep_site(elf, shift, body, notes)
    for owner, kind, body in _all_notes(elf, IMAGE_SECTION, notes):
        if owner == b"rbtrace" and kind == _IMAGE_TYPE:
            _keep_image(body, notes)
    return notes


def image_signature(fd: int) -> tuple[int, int]:
    """Return the sizes of the two note sections of the ELF file open as ``fd``.

    They grow when the gem defines a probe. Raises BadElf.
    """
    return signature_of(ElfFile(fd))


def signature_of(elf: ElfFile) -> tuple[int, int]:
    """Return the ``image_signature`` of a file whose headers were just read."""
    sizes = [
        sum(section.size for section in elf.named(name))
        for name in (STAPSDT_SECTION, IMAGE_SECTION)
    ]
    return (sizes[0], sizes[1])


def _all_notes(
    elf: ElfFile, name: bytes, notes: ElfNotes
) -> Iterator[tuple[bytes, int, bytes]]:
    budget = elf.budget
    for section in elf.named(name):
        data, whole = _section_bytes(elf, section, budget.bytes)
        notes.truncated |= not whole
        budget.bytes -= len(data)
        for note in iterate(data, notes):
            if budget.notes <= 0:
                notes.truncated = True
                return
            budget.notes -= 1
            yield note


def _section_bytes(elf: ElfFile, section: Section, budget: int) -> tuple[bytes, bool]:
    """Reread a section; return its bytes and whether they are complete."""
    current = elf.reread(section)
    data = elf.data(current, budget)
    return data, current.type == SHT_NOBITS or len(data) == current.size


def iterate(data: bytes, notes: ElfNotes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the owner, type, and description of each note in a section's bytes.

    Names and descriptions are padded to 4 bytes (``Elf64_Nhdr``): GNU's tools and
    systemtap's header ignore the section's alignment. A note that exceeds the section
    counts as malformed and ends the iteration.
    """
    position, end = 0, len(data)
    while position + _NOTE.size <= end:
        name_size, size, kind = _NOTE.unpack_from(data, position)
        name_at = position + _NOTE.size
        body_at = name_at + _padded(name_size)
        if body_at + size > end:
            notes.malformed += 1
            return
        owner = data[name_at : name_at + min(name_size, 16)].rstrip(b"\0")
        yield owner, kind, data[body_at : body_at + size]
        position = body_at + _padded(size)


def _padded(size: int) -> int:
    return (size + 3) & ~3


class _Prelink:
    """The distance by which prelink moved the file after the note was written.

    The note contains the link address of ``.stapsdt.base``. prelink adjusts section
    headers but not notes.
    """

    def __init__(self, elf: ElfFile) -> None:
        bases = elf.named(_BASE_SECTION)
        self._base = bases[0].address if bases else None

    def adjust(self, address: int, base: int) -> int:
        if self._base is None or base == 0:
            return address
        return (address + self._base - base) & _WORD


def _keep_site(elf: ElfFile, shift: _Prelink, body: bytes, notes: ElfNotes) -> None:
    note = _site(elf, shift, body)
    if note is None:
        notes.malformed += 1
    else:
        notes.sites.append(note)


def _site(elf: ElfFile, shift: _Prelink, body: bytes) -> StapsdtNote | None:
    if len(body) < _ADDRESSES.size:
        return None
    pc, base, semaphore = _ADDRESSES.unpack_from(body)
    strings = body[_ADDRESSES.size :].split(b"\0", 3)
    if len(strings) != 4 or not _are_names(strings):
        return None
    address = shift.adjust(pc, base)
    offset = elf.file_offset(address, PF_X)
    counter = _semaphore_offset(elf, shift.adjust(semaphore, base), semaphore)
    if offset is None or counter is None:
        return None
    provider, name, arguments = (safe_text(part) for part in strings[:3])
    return StapsdtNote(provider, name, arguments, pc, address, offset, counter)


def _are_names(strings: list[bytes]) -> bool:
    provider, name, arguments = strings[:3]
    return (
        0 < len(provider) <= _MAX_NAME
        and 0 < len(name) <= _MAX_NAME
        and len(arguments) <= _MAX_ARGUMENTS
    )


def _semaphore_offset(elf: ElfFile, address: int, semaphore: int) -> int | None:
    """Return the semaphore's file offset; 0: no semaphore, None: invalid address.

    The kernel increments it in a writable private mapping of the file. It could not
    increment a semaphore elsewhere, and the probe would never fire.
    """
    if semaphore == 0:
        return 0
    return elf.file_offset(address, PF_W) or None


def _keep_image(body: bytes, notes: ElfNotes) -> None:
    try:
        note = parse_image_note(body)
    except BadElf:
        notes.malformed += 1
        return
    if note is not None:
        notes.images[note.pc] = note


def parse_image_note(body: bytes) -> ImageNote | None:
    """Parse the description of an ``rbtrace`` note (docs/probes.md).

    Returns:
        The note, or None if its version is unknown.

    Raises:
        BadElf: An entry exceeds the note.
    """
    if len(body) < _IMAGE_HEAD.size:
        raise BadElf("an rbtrace note ends within its head")
    pc, version, role, count = _IMAGE_HEAD.unpack_from(body)
    if version != _IMAGE_VERSION:
        return None
    operands, method = _entries(body[_IMAGE_HEAD.size :], count)
    return ImageNote(pc, _PROBE_ROLES.get(role, ProbeRole.EVENT), operands, method)


@lru_cache(maxsize=1024)
def _entries(data: bytes, count: int) -> tuple[tuple[Operand, ...], str | None]:
    """Parse the operands and the method name; many probes share them."""
    found: list[Operand] = []
    position = 0
    for place in range(count):
        if position >= len(data):
            raise BadElf("an rbtrace note has fewer operands than it declares")
        entry = _entry(data, position)
        position += 1 + len(entry)
        found.append(_operand(place, entry))
    return tuple(found), _method(data, position)


def _entry(data: bytes, position: int) -> bytes:
    size = data[position]
    entry = data[position + 1 : position + 1 + size]
    if size < 2 or len(entry) < size:
        raise BadElf("an operand reaches beyond its rbtrace note")
    return entry


def _method(data: bytes, position: int) -> str | None:
    """Return the Ruby method name, if the entry after the operands contains one.

    Later versions may append other entries, which are ignored.
    """
    try:
        entry = _entry(data, position) if position < len(data) else b""
    except BadElf:
        return None
    if not entry or entry[0] != _METHOD_ROLE:
        return None
    return safe_text(entry[2:].split(b"\0", 1)[0]) or None


_METHOD_ROLE = 4


_PROBE_ROLES = {int(role): role for role in ProbeRole}
_ROLES = {int(role): role for role in OperandRole}
_TYPES = {int(type_): type_ for type_ in OperandType}


def _operand(place: int, entry: bytes) -> Operand:
    kind = _TYPES.get(entry[1], OperandType.UNKNOWN)
    return Operand(
        name=safe_text(entry[2:].split(b"\0", 1)[0]) or f"arg{place}",
        type=kind,
        role=_ROLES.get(entry[0], OperandRole.UNKNOWN),
        signed=kind in (OperandType.INTEGER, OperandType.NIL),
    )
