"""A bounded reader of 64-bit little-endian ELF files.

The file belongs to a target. Any count, offset, or size may be wrong, and the file may
change while it is read. Reads are limited to the file's end and to fixed maximums, and
inconsistent data raises BadElf.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.errors import BadElf

EM_X86_64 = 62
EM_AARCH64 = 183
ET_CORE = 4
PT_LOAD = 1
PT_NOTE = 4
PF_X = 1
PF_W = 2
SHT_NOBITS = 8
SHF_COMPRESSED = 0x800

_MAX_SECTIONS = 100_000
_MAX_SEGMENTS = 10_000
_MAX_CORE_SEGMENTS = 200_000
"""A core has one per mapping; vm.max_map_count is 65,530 by default."""
_MAX_NAMES = 8 << 20
_MAX_NAME = 256
_PN_XNUM = 0xFFFF
_SHN_XINDEX = 0xFFFF

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")


@dataclass(frozen=True, slots=True)
class Section:
    """The fields used of ``Elf64_Shdr``; addresses and sizes in bytes."""

    index: int
    name: bytes
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int = 0
    entry_size: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD or PT_NOTE ``Elf64_Phdr``; all numbers in bytes."""

    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int = 0


@dataclass(slots=True)
class Budget:
    """Remaining limits for reading a process's ELF files in one scan.

    ``bytes`` limits notes and section names.
    """

    headers: int = 500_000
    notes: int = 200_000
    bytes: int = 64 << 20


class ElfFile:
    """Headers of the ELF file open as ``fd``; the caller closes it.

    The sections of a core are not read: they contain nothing of use, and a truncated
    core lacks them.

    Attributes:
        segments: PT_LOAD segments with bytes in the file, by address.
        loads: All PT_LOAD segments, by address.
        note_segments: PT_NOTE segments.

    Raises:
        BadElf: The file is not ELF64 little-endian, is inconsistent, or has more
            headers than ``budget`` allows.
    """

    def __init__(
        self, fd: int, budget: Budget | None = None, is_core: bool = False
    ) -> None:
        self._fd = fd
        self.budget = budget if budget is not None else Budget()
        header = self._header()
        self.type: int = header[1]
        self.machine: int = header[2]
        self._section_table = _Table("section", header[6], header[11], _SECTION.size)
        first = self._first_section(header[6])
        section_count = header[12] or (first[5] if first else 0)
        segment_count = header[10]
        if segment_count == _PN_XNUM and first:
            segment_count = first[7]
        names = header[13]
        if names == _SHN_XINDEX and first:
            names = first[6]
        self._section_count = section_count
        table = _Table("program", header[5], header[9], _SEGMENT.size)
        most = _MAX_CORE_SEGMENTS if is_core else _MAX_SEGMENTS
        headers = self._read_segments(table, segment_count, most)
        self.loads = tuple(_by_address(headers, PT_LOAD))
        self.note_segments = tuple(one for kind, one in headers if kind == PT_NOTE)
        self.segments = tuple(one for one in self.loads if one.file_size > 0)
        self._starts = [segment.address for segment in self.segments]
        self.sections = () if is_core else tuple(self._read_sections(names))

    @property
    def size(self) -> int:
        """The current size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def _header(self) -> tuple[int, ...]:
        data = pread(self._fd, _HEADER.size, 0)
        if data[:4] != b"\x7fELF":
            raise BadElf("not an ELF file")
        if len(data) < 6 or data[4] != 2:
            raise BadElf("a 32-bit ELF file; only 64-bit programs can be traced")
        if data[5] != 1:
            raise BadElf("a big-endian ELF file; only little-endian ones can be read")
        if len(data) < _HEADER.size:
            raise BadElf("truncated within the ELF header")
        return _HEADER.unpack(data)

    def _first_section(self, offset: int) -> tuple[int, ...] | None:
        """Read section 0, which holds the counts that do not fit into the header."""
        if offset == 0:
            return None
        if offset + _SECTION.size > self.size:
            raise BadElf("the section headers begin beyond the file's end")
        return _SECTION.unpack(self.read(offset, _SECTION.size))

    def _read_segments(
        self, table: _Table, count: int, most: int
    ) -> list[tuple[int, Segment]]:
        """Return all program headers with their types, in file order."""
        data = self._read_table(table, count, most)
        return [
            (kind, Segment(flags, offset, address, size, memory))
            for kind, flags, offset, address, _, size, memory, _ in (
                _SEGMENT.iter_unpack(data)
            )
        ]

    def _read_sections(self, names_index: int) -> Iterator[Section]:
        if self._section_table.offset == 0:
            return
        data = self._read_table(self._section_table, self._section_count, _MAX_SECTIONS)
        rows = list(_SECTION.iter_unpack(data))
        names = self._read_names(rows, names_index)
        for index, row in enumerate(rows):
            yield _section(index, name_at(names, row[0]), row)

    def _read_names(self, rows: list[tuple[int, ...]], index: int) -> bytes:
        if not rows or index == 0:
            return b""
        if index >= len(rows):
            raise BadElf(f"section names are in section {index} of {len(rows)}")
        size = min(rows[index][5], _MAX_NAMES)
        if size > self.budget.bytes:
            raise BadElf("too many section names")
        self.budget.bytes -= size
        return self.read(rows[index][4], size)

    def _read_table(self, table: _Table, count: int, most: int) -> bytes:
        if count == 0:
            return b""
        if count > most:
            raise BadElf(f"{count} {table.kind} headers; at most {most} are read")
        if table.entry_size != table.expected:
            raise BadElf(f"{table.kind} headers of {table.entry_size} bytes")
        if count > self.budget.headers:
            raise BadElf(f"too many {table.kind} headers")
        self.budget.headers -= count
        return self.read(table.offset, count * table.expected)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes at ``offset`` of the file; raises BadElf."""
        if offset + size > self.size:
            raise BadElf(f"{size} bytes at {offset:#x} reach beyond the file's end")
        data = pread(self._fd, size, offset)
        if len(data) != size:
            raise BadElf("the file became shorter while it was read")
        return data

    def named(self, name: bytes) -> list[Section]:
        """Return the sections with this name, in file order."""
        return [section for section in self.sections if section.name == name]

    def reread(self, section: Section) -> Section:
        """Return ``section`` as the file's header describes it now."""
        offset = self._section_table.offset + section.index * _SECTION.size
        row = _SECTION.unpack(self.read(offset, _SECTION.size))
        return _section(section.index, section.name, row)

    def data(self, section: Section, limit: int) -> bytes:
        """Return at most ``limit`` bytes of the section; raises BadElf."""
        if section.type == SHT_NOBITS:
            return b""
        if section.flags & SHF_COMPRESSED:
            raise BadElf("a compressed section")
        if section.offset + section.size > self.size:
            raise BadElf("a section reaches beyond the file's end")
        return self.read(section.offset, min(section.size, limit))

    def file_offset(self, address: int, flags: int) -> int | None:
        """Return the file offset of a virtual address, or None.

        The address must be within the file and in the file's part of a PT_LOAD segment
        with all of ``flags``. Linkers never make overlapping segments; if a file has
        them, the last one that begins at or before the address is used.
        """
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        segment = self.segments[place]
        into = address - segment.address
        if into >= segment.file_size or segment.flags & flags != flags:
            return None
        offset = segment.offset + into
        return offset if offset < self.size else None


@dataclass(frozen=True, slots=True)
class _Table:
    """Offset of a header table, and its actual and expected entry size."""

    kind: str
    offset: int
    entry_size: int
    expected: int


def _section(index: int, name: bytes, row: tuple[int, ...]) -> Section:
    kind, flags, address, offset, size, link, _, _, entry_size = row[1:]
    return Section(index, name, kind, flags, address, offset, size, link, entry_size)


def _by_address(headers: list[tuple[int, Segment]], kind: int) -> list[Segment]:
    """Return the headers of one type, sorted, because files may violate the order."""
    found = [one for its, one in headers if its == kind]
    return sorted(found, key=lambda segment: segment.address)


def name_at(names: bytes, offset: int) -> bytes:
    """Return the NUL-terminated string at ``offset``, cut at 256 bytes, or b""."""
    if offset >= len(names):
        return b""
    end = names.find(b"\0", offset, offset + _MAX_NAME)
    return names[offset : end if end >= 0 else offset + _MAX_NAME]


def pread(fd: int, size: int, offset: int) -> bytes:
    """Return ``size`` bytes at ``offset``, fewer at the end; raises BadElf."""
    chunks: list[bytes] = []
    while size > 0:
        try:
            chunk = os.pread(fd, size, offset)
        except (OSError, OverflowError) as error:
            raise BadElf(f"cannot be read: {error}") from error
        if not chunk:
            break
        chunks.append(chunk)
        size -= len(chunk)
        offset += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
