"""Notes of an ELF core file: threads, files, the program.

The structures are the kernel's ``elf_prstatus``, ``elf_prpsinfo``, and NT_FILE
(include/linux/elfcore.h, fs/binfmt_elf.c), as on x86-64 and aarch64. gcore writes the
same. A malformed note is skipped and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from rbtrace_py.linux.elf.reader import EM_AARCH64, EM_X86_64
from rbtrace_py.linux.elf.symbols import iterate_notes
from rbtrace_py.linux.text import safe_text

NT_PRSTATUS = 1
NT_PRPSINFO = 3
NT_AUXV = 6
NT_FILE = 0x46494C45

_MAX_THREADS = 1 << 16
_MAX_FILES = 1 << 18
_MAX_PATH = 4096
_STATUS_PID = 32
_STATUS_REGISTERS = 112
"""Offsets of pr_pid and pr_reg in ``elf_prstatus``."""

_X86_64 = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags"
    " rsp ss fs_base gs_base ds es fs gs"
)
"""``user_regs_struct`` (arch/x86/include/asm/user_64.h)."""
_AARCH64 = [*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"]
_REGISTERS = {EM_X86_64: _X86_64.split(), EM_AARCH64: _AARCH64}

_FILE_HEAD = struct.Struct("<QQ")
_FILE = struct.Struct("<QQQ")
_PSINFO = struct.Struct("<4xQIIIIII16s80s")
_WORDS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class CoreThread:
    """A thread: kernel tid, its signal (0: none), and its registers by name."""

    tid: int
    signal: int
    registers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CoreMapping:
    """A mapped file: addresses and file offset in bytes, and the raw path."""

    start: int
    end: int
    offset: int
    path: bytes


@dataclass(slots=True)
class CoreNotes:
    """The contents of the notes.

    Attributes:
        pid: Pid of the process, or None without NT_PRPSINFO.
        command: Arguments as ``ps`` shows them, at most 80 bytes; safe to print.
        signal: The signal that killed the process; 0 for the core of a live process.
        malformed: Number of malformed notes.
    """

    threads: list[CoreThread] = field(default_factory=list)
    files: list[CoreMapping] = field(default_factory=list)
    auxv: dict[int, int] = field(default_factory=dict)
    pid: int | None = None
    comm: str = ""
    command: str = ""
    malformed: int = 0

    @property
    def signal(self) -> int:
        return self.threads[0].signal if self.threads else 0


def parse_core_notes(data: bytes, machine: int) -> CoreNotes:
    """Parse the notes of a core's PT_NOTE segment."""
    notes = CoreNotes()
    for owner, kind, body in iterate_notes(data):
        if owner != b"CORE":
            continue
        try:
            _add_note(notes, kind, body, machine)
        except (struct.error, ValueError, IndexError):
            notes.malformed += 1
    return notes


def _add_note(notes: CoreNotes, kind: int, body: bytes, machine: int) -> None:
    if kind == NT_PRSTATUS and len(notes.threads) < _MAX_THREADS:
        notes.threads.append(_thread(body, machine))
    elif kind == NT_PRPSINFO:
        _, _, _, pid, _, _, _, comm, command = _PSINFO.unpack_from(body, 4)
        notes.pid = pid
        notes.comm = safe_text(comm.split(b"\0")[0])
        notes.command = safe_text(command.split(b"\0")[0].strip())
    elif kind == NT_AUXV:
        whole = body[: len(body) - len(body) % _WORDS.size]
        notes.auxv = dict(_WORDS.iter_unpack(whole[:4096]))
    elif kind == NT_FILE:
        notes.files = _files(body)


def _thread(body: bytes, machine: int) -> CoreThread:
    signal = struct.unpack_from("<i", body, 0)[0]
    tid = struct.unpack_from("<i", body, _STATUS_PID)[0]
    if tid <= 0:
        raise ValueError("a thread without an id")
    names = _REGISTERS.get(machine, [])
    values = struct.unpack_from(f"<{len(names)}Q", body, _STATUS_REGISTERS)
    return CoreThread(tid, signal, dict(zip(names, values, strict=True)))


def _files(body: bytes) -> list[CoreMapping]:
    """Parse NT_FILE: count, page size, {start, end, offset in pages} …, then paths."""
    count, page = _FILE_HEAD.unpack_from(body, 0)
    if count > _MAX_FILES or not 0 < page <= 1 << 20:
        raise ValueError(f"{count} mappings of pages of {page} bytes")
    paths_at = _FILE_HEAD.size + count * _FILE.size
    if paths_at > len(body):
        raise ValueError("more mappings than fit into the note")
    rows = _FILE.iter_unpack(body[_FILE_HEAD.size : paths_at])
    paths = body[paths_at:].split(b"\0", count)
    found = [
        CoreMapping(start, end, pages * page, path[:_MAX_PATH])
        for (start, end, pages), path in zip(rows, paths, strict=False)
    ]
    return [one for one in found if one.start < one.end and one.path]
