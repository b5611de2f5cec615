"""Symbols, build-id, and load address of an ELF file.

The files are a target's, so reads are bounded. Names are searched in the raw bytes:
looking up one of 10,000 symbols costs little more than reading the table.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.reader import PF_X, ElfFile, Section, name_at
from rbtrace_py.linux.maps import Mapping

SHT_SYMTAB = 2
SHT_DYNSYM = 11
STT_FUNC = 2
STT_TLS = 6
STT_GNU_IFUNC = 10
"""A symbol whose code selects the function at load time."""
NT_GNU_BUILD_ID = 3

_MAX_TABLE = 32 << 20
"""Bytes of one table or its names; a Ruby with debug symbols has about 2 MB."""
_MAX_CANDIDATES = 16
"""Maximum occurrences of a name, and symbols per name offset, that are checked."""
_MAX_BUILD_ID = 64
_MAX_NOTES = 1 << 16
_PAGE = 4096

_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")


class Symbol(NamedTuple):
    """A defined symbol; address and size in bytes, as in the file."""

    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class DebugLink:
    """Name of the debug file and the CRC-32 of its contents."""

    name: bytes
    crc: int


class SymbolTable:
    """Symbols of ``.symtab`` and ``.dynsym`` by name, read at the first lookup.

    The caller owns the file and must keep it open. Lookups raise BadElf if a table is
    inconsistent.
    """

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._tables: list[_Table] | None = None

    @classmethod
    def open(cls, fd: int) -> SymbolTable:
        """Create a table for the file open as ``fd``; raises BadElf."""
        return cls(ElfFile(fd))

    def find(self, name: str) -> Symbol | None:
        """Return the symbol of this name that the file defines, or None.

        ``.dynsym`` takes precedence over ``.symtab``, and a global symbol over a local
        one. Thread-local symbols are ignored.
        """
        for table in self._tables_for(name):
            found = table.find(name)
            if found is not None:
                return found
        return None

    def find_all(self, name: str) -> list[tuple[Symbol, int]]:
        """Return all symbols of this name, one per address, each with its STT_ type.

        A library may keep old versions of a function under the same name.
        """
        found = {}
        for table in self._tables_for(name):
            for symbol, info in table.named(name):
                found[symbol.address] = symbol, info & 15
        return list(found.values())

    def _tables_for(self, name: str) -> list[_Table]:
        return self._read_tables() if 0 < len(name) <= 256 else []

    def _read_tables(self) -> list[_Table]:
        if self._tables is None:
            sections = self.elf.sections
            wanted = [s for s in sections if s.type in (SHT_DYNSYM, SHT_SYMTAB)][:4]
            wanted.sort(key=lambda section: section.type, reverse=True)
            self._tables = [_Table(self.elf, section) for section in wanted]
        return self._tables


class _Table:
    """One symbol table and its names, as in the file."""

    def __init__(self, elf: ElfFile, section: Section) -> None:
        self._data = _table_bytes(elf, section, _SYMBOL.size)
        if not 0 < section.link < len(elf.sections):
            raise BadElf(f"names of symbols are in section {section.link}")
        self._names = _table_bytes(elf, elf.sections[section.link], 1)
        # Every sixth word of 4 bytes: st_name of an Elf64_Sym.
        self._name_offsets = array("I", self._data)[::6]

    def find(self, name: str) -> Symbol | None:
        best: Symbol | None = None
        for symbol, info in self.named(name):
            if info >> 4:  # STB_LOCAL is 0
                return symbol
            best = best or symbol
        return best

    def named(self, name: str) -> Iterator[tuple[Symbol, int]]:
        """Yield the symbols of this name, each with its ``st_info``.

        Linkers share string tails: ``b"main\0"`` may be the end of another name.
        """
        for offset in _occurrences(self._names, name.encode() + b"\0"):
            for row in _rows_with(self._name_offsets, offset):
                fields = _SYMBOL.unpack_from(self._data, row * _SYMBOL.size)
                _, info, _, section, address, size = fields
                if section != 0 and info & 15 != STT_TLS:
                    yield Symbol(name, address, size), info


def _table_bytes(elf: ElfFile, section: Section, entry: int) -> bytes:
    """Return a whole table; raises BadElf if it is invalid or too large."""
    if section.size > _MAX_TABLE:
        raise BadElf(f"a table of {section.size} bytes; at most {_MAX_TABLE} are read")
    if entry > 1 and section.entry_size != entry:
        raise BadElf(f"a table with entries of {section.entry_size} bytes")
    data = elf.data(section, _MAX_TABLE)
    return data[: len(data) - len(data) % entry]


def _occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    at = -1
    for _ in range(_MAX_CANDIDATES):
        at = data.find(wanted, at + 1)
        if at < 0:
            return
        yield at


def _rows_with(values: array[int], wanted: int) -> Iterator[int]:
    """Yield the indexes of ``wanted``."""
    place = -1
    for _ in range(_MAX_CANDIDATES):
        try:
            place = values.index(wanted, place + 1)
        except ValueError:
            return
        yield place


def build_id(elf: ElfFile) -> bytes | None:
    """Return the GNU build-id (NT_GNU_BUILD_ID), or None.

    It is read from its section, or from the PT_NOTE segments of a file without
    sections.
    """
    for section in elf.named(b".note.gnu.build-id")[:4]:
        found = build_id_in(elf.data(section, _MAX_NOTES))
        if found is not None:
            return found
    for segment in elf.note_segments[:16]:
        try:
            data = elf.read(segment.offset, min(segment.file_size, _MAX_NOTES))
        except BadElf:
            continue
        found = build_id_in(data)
        if found is not None:
            return found
    return None


def build_id_in(notes: bytes) -> bytes | None:
    """Return the build-id in the notes of a segment or section, or None."""
    for owner, kind, body in iterate_notes(notes):
        if owner == b"GNU" and kind == NT_GNU_BUILD_ID:
            return body if 0 < len(body) <= _MAX_BUILD_ID else None
    return None


def iterate_notes(
    data: bytes, limit: int = 1 << 20
) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the owner without its NUL, the type, and the body of each ``Elf64_Nhdr``.

    A note that does not fit into ``data`` ends the iteration.
    """
    at = 0
    for _ in range(limit):
        if at + _NOTE.size > len(data):
            return
        name_size, size, kind = _NOTE.unpack_from(data, at)
        start = at + _NOTE.size
        body_at = start + (name_size + 3 & ~3)
        if body_at + size > len(data):
            return
        owner = data[start : start + name_size].rstrip(b"\0")
        yield owner, kind, data[body_at : body_at + size]
        at = body_at + (size + 3 & ~3)


def debug_link(elf: ElfFile) -> DebugLink | None:
    """Return the contents of ``.gnu_debuglink``; None if missing or invalid."""
    for section in elf.named(b".gnu_debuglink")[:1]:
        data = elf.data(section, 4096)
        name = name_at(data, 0)
        at = len(name) + 4 & ~3
        # The name must not be a path: it is searched in fixed directories.
        is_name = name not in (b"", b".", b"..") and b"/" not in name
        if is_name and at + 4 <= len(data):
            return DebugLink(name, int.from_bytes(data[at : at + 4], "little"))
    return None


def load_bias(elf: ElfFile, mappings: Sequence[Mapping]) -> int | None:
    """Return the difference between addresses in the process and in the file, or None.

    Args:
        elf: The file.
        mappings: The file's mappings. Executable ones are tried first: the pages
            between two segments are mapped twice, but only once as executable.
    """
    for mapping in sorted(mappings, key=lambda m: (not m.is_executable, m.start)):
        flags = PF_X if mapping.is_executable else 0
        for segment in elf.segments:
            start = segment.offset & -_PAGE
            is_in = start <= mapping.offset < segment.offset + segment.file_size
            if is_in and segment.flags & flags == flags:
                # The loader rounds both down to a page, so the difference stays the
                # same.
                of_file = segment.address - segment.offset + mapping.offset
                return mapping.start - of_file
    return None
