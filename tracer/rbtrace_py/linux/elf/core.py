"""An ELF core file as memory.

A core contains the memory that the process wrote. Pages that it only read (code,
constants) are usually missing. They are read from the mapped files, if the build-id of
the file equals the one in the core. A core may be truncated or malicious.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rbtrace_py.errors import BadElf, RbtraceError, UnreadableMemory
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.elf.core_notes import CoreMapping, CoreNotes, parse_core_notes
from rbtrace_py.linux.elf.reader import ET_CORE, PF_W, PF_X, ElfFile, Segment, pread
from rbtrace_py.linux.elf.symbols import build_id, build_id_in
from rbtrace_py.linux.maps import Mapping
from rbtrace_py.linux.text import safe_text
from rbtrace_py.linux.unpack import LARGEST, open_regular, open_unpacked

_MAX_NOTES = 128 << 20
"""Maximum bytes of notes; a thread has about 4 kB."""
_MAX_READ = 64 << 20
_MAX_FILES = 256
"""Maximum number of files opened to fill gaps."""
_PAGE = 4096
_PT_NOTE = 4


@dataclass(frozen=True, slots=True)
class _Piece:
    """Memory whose bytes are at ``offset`` of the file ``fd``."""

    start: int
    end: int
    fd: int
    offset: int


class CoreFile(Closing):
    """The core at ``path``, gzipped or not; a ``linux.memory.Memory``.

    Attributes:
        notes: Threads, mapped files, and the program.
        is_truncated: The file is shorter than its headers require.
        filled: Descriptors of the files that fill gaps, by their mapped path.

    Raises:
        BadElf: The file is not a core file.
        RbtraceError, NotPermitted: The file cannot be read.
    """

    def __init__(self, path: str, limit: int = LARGEST) -> None:
        self.path = path
        self._files: list[int] = []
        self.filled: dict[bytes, int] = {}
        fd, cut = open_unpacked(path, limit)
        self._files.append(fd)
        try:
            self._read(fd, cut)
        except BaseException:
            self.close()
            raise

    def _read(self, fd: int, cut: bool) -> None:
        elf = _core_headers(fd, self.path)
        self.machine = elf.machine
        self.loads = elf.loads
        self._load_starts = [load.address for load in elf.loads]
        size = elf.size
        needed = [s.offset + s.file_size for s in (*elf.segments, *elf.note_segments)]
        self.is_truncated = cut or max(needed, default=0) > size
        self.notes = _notes(elf, size)
        self._pieces = _whole_pieces([_piece(fd, s, size) for s in elf.segments])
        self._index()

    def _index(self) -> None:
        self._pieces.sort(key=lambda piece: piece.start)
        self._starts = [piece.start for piece in self._pieces]

    # ---------------------------------------------------------------- memory

    def read(self, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes; raises UnreadableMemory."""
        if not 0 <= size <= _MAX_READ:
            raise UnreadableMemory(f"cannot read {size} bytes at once")
        chunks = []
        while size > 0:
            piece = self._piece_at(address)
            if piece is None:
                raise self._missing(address, size)
            part = min(size, piece.end - address)
            data = pread(piece.fd, part, piece.offset + address - piece.start)
            if len(data) != part:
                raise self._missing(address, size)
            chunks.append(data)
            address, size = address + part, size - part
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (address, size)."""
        return [self.read(address, size) for address, size in ranges]

    def _piece_at(self, address: int) -> _Piece | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0 or self._pieces[place].end <= address:
            return None
        return self._pieces[place]

    def _missing(self, address: int, size: int) -> UnreadableMemory:
        why = " (it has been cut short)" if self.is_truncated else ""
        return UnreadableMemory(
            f"the core file has no {size} bytes at {address:#x}{why}",
            "Give its program with --exe" if not why else "",
        )

    # ----------------------------------------------------------------- files

    @cached_property
    def mappings(self) -> Sequence[Mapping]:
        """The mappings by address, like ``/proc/PID/maps``.

        A core has no inodes, so each file gets a unique number instead.
        """
        inodes: dict[bytes, int] = {}
        found = []
        for file in self.notes.files:
            inode = inodes.setdefault(file.path, len(inodes) + 1)
            perms = self._perms(file.start)
            found.append(
                Mapping(file.start, file.end, perms, file.offset, 0, inode, file.path)
            )
        known = {one.start for one in found}
        for load in self.loads:
            if load.address not in known:
                end = load.address + load.memory_size
                perms = _perms(load.flags)
                found.append(Mapping(load.address, end, perms, 0, 0, 0, b""))
        return sorted(found, key=lambda mapping: mapping.start)

    def _perms(self, address: int) -> str:
        """Return the permissions. Code that gcore omits has no segment."""
        place = bisect_right(self._load_starts, address) - 1
        if place >= 0:
            load = self.loads[place]
            if address < load.address + max(load.memory_size, 1):
                return _perms(load.flags)
        return "r-xp"

    def paths(self) -> list[bytes]:
        """Return the paths of the mapped files, without duplicates, by address."""
        return list(dict.fromkeys(file.path for file in self.notes.files))

    def build_id_of(self, path: bytes) -> bytes | None:
        """Return the build-id of a mapped file, from the core's memory, or None."""
        file = self._beginnings.get(path)
        return None if file is None else self._build_id_at(file.start, file.end)

    @cached_property
    def _beginnings(self) -> dict[bytes, CoreMapping]:
        """The first mapping of each file's beginning, by path."""
        found: dict[bytes, CoreMapping] = {}
        for file in self.notes.files:
            if file.offset == 0:
                found.setdefault(file.path, file)
        return found

    def _build_id_at(self, start: int, end: int) -> bytes | None:
        """Read it from the file's first page, which the kernel puts into every core."""
        try:
            page = self.read(start, min(_PAGE, end - start))
        except UnreadableMemory:
            return None
        if page[:4] != b"\x7fELF" or len(page) < 64:
            return None
        at = int.from_bytes(page[32:40], "little")
        count = int.from_bytes(page[56:58], "little")
        for place in range(at, min(at + 56 * count, len(page) - 55), 56):
            kind = int.from_bytes(page[place : place + 4], "little")
            offset = int.from_bytes(page[place + 8 : place + 16], "little")
            size = int.from_bytes(page[place + 32 : place + 40], "little")
            if kind == _PT_NOTE and offset < len(page):
                found = build_id_in(page[offset : offset + min(size, _PAGE)])
                if found is not None:
                    return found
        return None

    def fill_from(self, path: bytes, file: str | bytes) -> None:
        """Fill the gaps in the mappings of ``path`` from ``file``.

        Raises:
            BadElf: The file is another build, or not an ELF file.
            RbtraceError, NotPermitted: The file cannot be read.
        """
        if path in self.filled:
            return
        if len(self._files) >= _MAX_FILES:
            raise RbtraceError("too many mapped files")
        fd = open_regular(os.fsdecode(file))
        self._files.append(fd)
        self._check_same(path, ElfFile(fd), safe_text(os.fsencode(file)))
        size = os.fstat(fd).st_size
        mapped = [one for one in self.notes.files if one.path == path]
        self._pieces += self._gaps(mapped, fd, size)
        self._index()
        self.filled[path] = fd

    def _check_same(self, path: bytes, elf: ElfFile, shown: str) -> None:
        expected, found = self.build_id_of(path), build_id(elf)
        if expected is None or found is None:
            where = "the core" if expected is None else shown
            raise BadElf(
                f"cannot tell whether {shown} belongs to the core file: no"
                f" build-id in {where}"
            )
        if expected != found:
            raise BadElf(
                f"{shown} is another build: its build-id is {found.hex()},"
                f" the core's is {expected.hex()}",
                "Give the exact program of the core file",
            )

    def _gaps(self, mapped: Sequence[CoreMapping], fd: int, size: int) -> list[_Piece]:
        """Return the parts of ``mapped`` that only the file contains.

        Writable parts are not filled, because the file's bytes are outdated there.
        """
        found = []
        for one in mapped:
            if "w" in self._perms(one.start):
                continue
            at = one.start
            end = min(one.end, one.start + max(0, size - one.offset))
            for piece in self._within(one.start, end):
                if at < piece.start:
                    found.append(
                        _Piece(at, piece.start, fd, one.offset + at - one.start)
                    )
                at = max(at, piece.end)
            if at < end:
                found.append(_Piece(at, end, fd, one.offset + at - one.start))
        return found

    def _within(self, start: int, end: int) -> list[_Piece]:
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_right(self._starts, end)
        return [p for p in self._pieces[first:last] if p.end > start and p.start < end]

    def close(self) -> None:
        """Close all files. Closing twice does nothing."""
        while self._files:
            os.close(self._files.pop())


def _core_headers(fd: int, path: str) -> ElfFile:
    """Read a core's headers; raises BadElf, with the path, if it is not a core."""
    try:
        elf = ElfFile(fd, is_core=True)
    except BadElf as error:
        raise BadElf(f"{path}: {error}", error.hint) from error
    if elf.type != ET_CORE:
        raise BadElf(f"{path} is an ELF file, but not a core file", "Give a core file")
    return elf


def _notes(elf: ElfFile, size: int) -> CoreNotes:
    """Return the notes of a segment, as far as the file contains it."""
    for segment in elf.note_segments[:1]:
        there = max(0, min(segment.file_size, size - segment.offset, _MAX_NOTES))
        if there:
            return parse_core_notes(elf.read(segment.offset, there), elf.machine)
    return CoreNotes()


def _piece(fd: int, segment: Segment, size: int) -> _Piece:
    there = max(0, min(segment.file_size, size - segment.offset))
    return _Piece(segment.address, segment.address + there, fd, segment.offset)


def _whole_pieces(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Drop pieces that are empty, wrap around, or overlap an earlier one."""
    found: list[_Piece] = []
    for piece in pieces:
        if piece.start >= piece.end or piece.end > 1 << 64:
            continue
        if found and piece.start < found[-1].end:
            continue
        found.append(piece)
    return found


def _perms(flags: int) -> str:
    return f"r{'w' if flags & PF_W else '-'}{'x' if flags & PF_X else '-'}p"
