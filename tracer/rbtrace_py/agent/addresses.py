"""Addresses of the functions that an injection calls."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import BadElf, NotPermitted
from rbtrace_py.linux.binaries import MappedFile, group_files, open_mapped
from rbtrace_py.linux.elf.reader import PF_X, Budget, ElfFile
from rbtrace_py.linux.elf.symbols import SymbolTable, load_bias
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.signal_frame import RETURN_CODE

_MOST_CODE = 64 << 20
_LIBC = ("libc.", "libc-", "ld-musl-")
"""Beginnings of the file names of C libraries."""
_FUNCTIONS = ("sigaction", "mmap")


@dataclass(frozen=True, slots=True)
class RubyAddresses:
    """Addresses in a process's Ruby; a function is None if the file lacks its symbol.

    Attributes:
        vm: Address of the VM; 0 before Ruby has created it.
        eval_string: ``rb_eval_string(const char *)``.
        register_one: ``rb_postponed_job_register_one``, up to 4.0.
        preregister: ``rb_postponed_job_preregister``, since 3.3.
        trigger: ``rb_postponed_job_trigger``, since 3.3.
        job_tables: Variables that may be the table of postponed jobs, since 4.1.
        current_ec: Up to 2.7, a pointer to the execution context of the thread that ran
            Ruby last. ``rb_postponed_job_register_one`` announces a job to that thread.
        code: Start and end address of each executable mapping of its file.
        filters: Number of seccomp filters of its main thread.
        program: Identity of the program with these addresses (``Process.program``).
    """

    vm: int
    eval_string: int | None
    register_one: int | None
    preregister: int | None
    trigger: int | None
    job_tables: tuple[int, ...]
    current_ec: int | None
    code: tuple[tuple[int, int], ...]
    filters: int
    program: bytes

    def is_code(self, address: int) -> bool:
        """Return whether an address is in Ruby's code."""
        return any(start <= address < end for start, end in self.code)


@dataclass(frozen=True, slots=True)
class Landing:
    """Addresses outside Ruby that an injection needs.

    Attributes:
        restore: Code that calls ``rt_sigreturn``, to which signal handlers return.
        sigaction: The C library's function, or None if it was not found.
        mmap: The C library's function, or None if it was not found.
    """

    restore: int
    sigaction: int | None
    mmap: int | None


def find_landing(process: Process) -> Landing | None:
    """Search the mapped files of ``process``; return None without ``restore``."""
    restore: int | None = None
    found: dict[str, int] = {}
    for file in _by_likelihood(group_files(mappings(process))):
        with suppress(BadElf, NotPermitted), open_mapped(process, file) as opened:
            elf = ElfFile(opened.fd, Budget())
            bias = load_bias(elf, file.mappings)
            if bias is None:
                continue
            restore = restore or _find_code(elf, bias)
            if _name(file).startswith(_LIBC):
                found |= _functions(elf, bias)
        if restore and len(found) == len(_FUNCTIONS):
            break
    if restore is None:
        return None
    return Landing(restore, *map(found.get, _FUNCTIONS))


def _functions(elf: ElfFile, bias: int) -> dict[str, int]:
    table = SymbolTable(elf)
    symbols = ((name, table.find(name)) for name in _FUNCTIONS)
    return {name: bias + symbol.address for name, symbol in symbols if symbol}


def _name(file: MappedFile) -> str:
    return file.binary.path.rsplit("/", 1)[-1]


def _by_likelihood(files: list[MappedFile]) -> list[MappedFile]:
    """Sort files: first the C library, then Ruby, then the others by size."""

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
