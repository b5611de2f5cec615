"""Functions of the files that a process maps, as probes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from rbtrace_py.errors import BpfError, RbtraceError
from rbtrace_py.linux.binaries import MappedFile, mapped_files, open_binary, open_mapped
from rbtrace_py.linux.elf.operands import AARCH64_REGISTERS, X86_64_REGISTERS
from rbtrace_py.linux.elf.reader import EM_X86_64, PF_X, ElfFile, pread
from rbtrace_py.linux.elf.symbols import STT_FUNC, STT_GNU_IFUNC, SymbolTable
from rbtrace_py.linux.process import Process
from rbtrace_py.model.probes import Location, LocationKind, Operand, Probe, Site

_X86_64_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_WORD = 8
_EMULATED = re.compile(
    rb"A?[P-W]|\x90|[\xe8\xe9\xeb]|[p-\x7f]|\x0f[\x80-\x8f]", re.DOTALL
)
"""Instructions that the kernel emulates at a breakpoint: push, nop, call, and jumps
(arch/x86/kernel/uprobes.c). It single-steps others, which takes eight times as long."""


def files_named(process: Process, library: str) -> list[MappedFile]:
    """Return the mapped files that ``library`` names.

    Args:
        library: A path as the process has it, or a file name. The name may lack its
            version: ``libc`` is libc.so.6, ``libruby`` is libruby-3.1.so.3.1.7.
    """
    versions = r"[-.\d]*(\.so[.\d]*)?"
    pattern = re.compile(re.escape(library) + versions)
    return [
        file
        for file in mapped_files(process)
        if file.binary.path == library
        or pattern.fullmatch(os.path.basename(file.binary.path))
    ]


def functions_named(process: Process, library: str, name: str) -> list[Probe]:
    """Return the functions of this name, one per file, as probes ``library:name``.

    The operands ``arg0`` … are the registers of the calling convention, 8 bytes each.

    Raises:
        BpfError: The loader chooses the code (IFUNC), as for memcpy.
    """
    found = []
    for file in files_named(process, library):
        try:
            with open_mapped(process, file) as opened:
                sites = tuple(_sites(ElfFile(opened.fd), name))
        except BpfError:
            raise
        except RbtraceError:
            continue
        if sites:
            operands = [Operand(f"arg{i}") for i in range(len(sites[0].locations))]
            found.append(Probe(library, name, file.binary, sites, tuple(operands)))
    return found


def is_stepped(process: Process, probe: Probe) -> bool:
    """Return whether the kernel must single-step an instruction at each call.

    Raises as ``open_binary`` does.
    """
    with open_binary(process, probe.binary) as opened:
        code = [pread(opened.fd, 2, site.offset) for site in probe.sites]
    return not all(map(_EMULATED.match, code))


def _sites(elf: ElfFile, name: str) -> Iterator[Site]:
    arguments = tuple(_arguments(elf.machine))
    for symbol, kind in SymbolTable(elf).find_all(name):
        if kind == STT_GNU_IFUNC:
            raise BpfError(
                f"{name} cannot be probed: the loader chooses its code (IFUNC)",
                "Name a function that calls it",
            )
        offset = elf.file_offset(symbol.address, PF_X)
        # Data may be in a segment with code; a breakpoint would change it.
        if offset is not None and kind == STT_FUNC:
            yield Site(symbol.address, offset, 0, arguments)


def _arguments(machine: int) -> Iterator[Location]:
    names = AARCH64_REGISTERS[:8]
    if machine == EM_X86_64:
        names = _X86_64_ARGUMENTS
    registers = X86_64_REGISTERS if machine == EM_X86_64 else AARCH64_REGISTERS
    for one in names:
        place = registers.index(one)
        yield Location(LocationKind.REGISTER, _WORD, signed=False, register=place)
