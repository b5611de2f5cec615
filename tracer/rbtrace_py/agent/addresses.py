"""Where in a process the functions are that it is led to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import BadElf, NotPermitted
from rbtrace_py.linux.binaries import MappedFile, group_files, open_mapped
from rbtrace_py.linux.elf import PF_X, Budget, ElfFile
from rbtrace_py.linux.maps import Mapping, mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.sigframe import RETURN_CODE
from rbtrace_py.linux.symbols import SymbolTable, load_bias

_MOST_CODE = 64 << 20
_PAGE = 4096
_PF_W = 2
_AMPLE = 1024
"""Bytes of room with which no more is looked for."""
_LIBC = ("libc.", "libc-", "ld-musl-")
"""How files of C libraries are called."""


@dataclass(frozen=True, slots=True)
class RubyAddresses:
    """Of the Ruby in a process; a function is None where the file has no such symbol.

    vm: the VM's address, 0 while there is none
    eval_string: ``rb_eval_string(const char *)``
    register_one: ``rb_postponed_job_register_one``, up to 4.0
    preregister, trigger: ``rb_postponed_job_preregister`` and ``…_trigger``, since 3.3
    code: first address and end of each executable mapping of its file
    """

    vm: int
    eval_string: int | None
    register_one: int | None
    preregister: int | None
    trigger: int | None
    code: tuple[tuple[int, int], ...]

    def is_code(self, address: int) -> bool:
        """Is it in Ruby itself?"""
        return any(start <= address < end for start, end in self.code)


@dataclass(frozen=True, slots=True)
class Landing:
    """What is needed of the process beside Ruby.

    restore: code that makes ``rt_sigreturn``, as a signal handler returns to
    sigaction: the C library's, None where it is not found
    rooms: (address, size) of zeroed writable memory that belongs to nobody, the
        largest first
    """

    restore: int
    sigaction: int | None
    rooms: tuple[tuple[int, int], ...]


def find_landing(process: Process) -> Landing | None:
    """Look into the files that ``process`` has mapped; None without a way back."""
    all_mappings = mappings(process)
    restore: int | None = None
    sigaction: int | None = None
    rooms: list[tuple[int, int]] = []
    for file in _by_likelihood(group_files(all_mappings)):
        with suppress(BadElf, NotPermitted), open_mapped(process, file) as opened:
            elf = ElfFile(opened.fd, Budget())
            bias = load_bias(elf, file.mappings)
            if bias is None:
                continue
            rooms += _tails(elf, bias, all_mappings, _name(file))
            restore = restore or _find_code(elf, bias)
            if _name(file).startswith(_LIBC):
                symbol = SymbolTable(elf).find("sigaction")
                sigaction = symbol and bias + symbol.address
        if restore and sigaction and any(size >= _AMPLE for _, size in rooms):
            break
    if restore is None:
        return None
    rooms.sort(key=lambda room: room[1], reverse=True)
    return Landing(restore, sigaction, tuple(rooms))


def _name(file: MappedFile) -> str:
    return file.binary.path.rsplit("/", 1)[-1]


def _by_likelihood(files: list[MappedFile]) -> list[MappedFile]:
    """The C library first, then Ruby, then all others by size."""

    def rank(file: MappedFile) -> tuple[bool, bool, int]:
        name = _name(file)
        size = sum(mapping.end - mapping.start for mapping in file.executable)
        return (not name.startswith(_LIBC), "libruby" not in name, -size)

    return sorted(files, key=rank)


def _find_code(elf: ElfFile, bias: int) -> int | None:
    for segment in elf.segments:
        if segment.flags & PF_X:
            code = elf.read(segment.offset, min(segment.file_size, _MOST_CODE))
            found = code.find(RETURN_CODE)
            if found >= 0:
                return bias + segment.address + found
    return None


def _tails(
    elf: ElfFile, bias: int, all_mappings: list[Mapping], name: str
) -> Iterator[tuple[int, int]]:
    """What is left of the last page of a file's .bss.

    Pages are mapped whole and filled with zeros, and nobody allocates there but the
    dynamic linker in its own, and the heap (brk) that may begin in the program's. All
    of musl's go to its malloc.
    """
    if name.startswith("ld") or any(b"/ld-musl-" in m.path for m in all_mappings):
        return
    for segment in elf.segments:
        end = bias + segment.address + segment.memory_size
        size = -end % _PAGE
        if not segment.flags & _PF_W or segment.memory_size == 0 or size == 0:
            continue
        for mapping in all_mappings:
            if mapping.start < end < mapping.end and mapping.is_writable:
                at_end = (m for m in all_mappings if m.start == mapping.end)
                if not any(m.path == b"[heap]" for m in at_end):
                    yield end, size
