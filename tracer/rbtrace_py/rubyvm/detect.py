"""The Ruby in a process: which file it is in, where that is mapped, which version.

A Ruby is found by what it defines, not by what its file is called: the program
itself when it is linked statically, else a libruby, wherever it lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import (
    BadElf,
    NotPermitted,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UsageError,
)
from rbtrace_py.linux.binaries import (
    MappedFile,
    OpenBinary,
    group_files,
    open_mapped,
)
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.elf.reader import PF_W, PF_X, Budget, ElfFile
from rbtrace_py.linux.elf.symbols import SymbolTable, build_id, load_bias
from rbtrace_py.linux.maps import Mapping, mappings
from rbtrace_py.linux.process import Process, gone

_MARK = b"\0ruby_version\0"
"""In the string table of each file that defines or uses CRuby's own version."""

_MAX_STRINGS = 32 << 20
_MAX_RODATA = 64 << 20
_MAX_BSS = 4 << 20
"""Bytes of zeroed data looked through at most; CRuby has about 80 kB."""

_VERSION = re.compile(r"[1-9]\.\d{1,2}\.\d{1,2}")
_DESCRIPTION = re.compile(
    rb"ruby ([1-9]\.\d{1,2}\.\d{1,2})(?:p\d+|dev|preview\d|rc\d|) \(20"
)
_IN_NAME = re.compile(r"ruby(?:-|\.so\.|)([1-9]\.\d{1,2}(?:\.\d{1,2})?)(?:$|\D)")


@dataclass(frozen=True, slots=True)
class Version:
    """``3.1.2``, and how it was learnt: ``ruby_version``, ``file name`` …"""

    text: str
    origin: str

    @property
    def minor(self) -> tuple[int, int]:
        """``(3, 1)``."""
        major, minor = self.text.split(".")[:2]
        return (int(major), int(minor))


class Ruby(Closing):
    """The file with CRuby's VM in it, open, and where a process has it mapped.

    bias: what to add to an address in the file to have the one in the process
    data: (address, size) of the writable memory of the file, .data and .bss
    is_loaded: has the loader mapped all of it to where it belongs?
    """

    def __init__(
        self, file: OpenBinary, elf: ElfFile, all_mappings: Sequence[Mapping]
    ) -> None:
        self.file = file
        self.elf = elf
        bias = load_bias(elf, file.mappings)
        if bias is None:
            raise BadElf("the file is not mapped as its headers say")
        self.bias = bias
        self.symbols = SymbolTable(elf)
        self.data = tuple(_writable(file.file, all_mappings))
        self.is_loaded = _is_loaded(elf, bias, all_mappings)
        self.build_id = (build_id(elf) or b"").hex()
        self.version = find_version(self)

    @property
    def path(self) -> str:
        """The path in ``/proc/PID/maps``, safe to show."""
        return self.file.binary.path

    def address(self, name: str) -> int | None:
        """Return the address of ``name`` in the process, or None if it is unknown."""
        symbol = self.symbols.find(name)
        return None if symbol is None else symbol.address + self.bias

    def code(self, address: int, size: int) -> bytes:
        """Return up to ``size`` bytes of code at an address in the process.

        From the file, as a probe may have patched the memory; b"" where there
        is no code.
        """
        return self.bytes_at(address - self.bias, size, PF_X)

    def bytes_at(self, address: int, size: int, flags: int = 0) -> bytes:
        """Return up to ``size`` bytes at a virtual address of the file."""
        offset = self.elf.file_offset(address, flags)
        if offset is None:
            return b""
        return self.elf.read(offset, min(size, self.elf.size - offset))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self.file.close()


def find_ruby(process: Process) -> Ruby:
    """Open the Ruby that ``process`` runs; the caller closes it.

    Raises NotRuby if it runs none, NotPermitted if files that may hold one
    cannot be opened, NoSuchTarget if it is gone.
    """
    all_mappings = mappings(process)
    refused: NotPermitted | None = None
    for mapped in _by_likelihood(group_files(all_mappings)):
        try:
            ruby = _open_ruby(process, mapped, all_mappings)
        except NotPermitted as error:
            refused = refused or error
        except BadElf:
            continue
        else:
            if ruby is not None:
                return ruby
    if refused is not None:
        raise refused
    if process.is_ending():  # it has no memory any more, of a Ruby or not
        raise gone(process.pid)
    raise NotRuby(
        f"process {process.pid} ({process.comm}) does not run Ruby",
        "Name a process of CRuby (MRI), not of JRuby or TruffleRuby",
    )


def forced_version(text: str) -> Version:
    """``--ruby-version``; raises UsageError if it is none."""
    words = text.removeprefix("ruby-").split(".")
    if len(words) == 2:
        words.append("0")
    version = ".".join(words)
    if not _VERSION.fullmatch(version):
        raise UsageError(f"{text!r} is not a Ruby version", "Write it as 3.3 or 3.3.8")
    return Version(version, "--ruby-version")


def _open_ruby(
    process: Process, mapped: MappedFile, all_mappings: Sequence[Mapping]
) -> Ruby | None:
    """The Ruby in ``mapped``, open, or None if there is none in it."""
    file = open_mapped(process, mapped)
    try:
        elf = ElfFile(file.fd, Budget())
        if _defines_ruby(elf):
            return Ruby(file, elf, all_mappings)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _by_likelihood(files: Iterable[MappedFile]) -> list[MappedFile]:
    """Files called ruby first, large ones before small ones."""

    def rank(mapped: MappedFile) -> tuple[bool, int]:
        name = mapped.binary.path.rsplit("/", 1)[-1]
        size = sum(mapping.end - mapping.start for mapping in mapped.executable)
        return ("ruby" not in name, -size)

    return sorted(files, key=rank)


def _defines_ruby(elf: ElfFile) -> bool:
    """Does it define a VM? An extension may use ``ruby_version`` as well."""
    for name in (b".dynstr", b".strtab"):
        for section in elf.named(name):
            if _MARK in elf.data(section, _MAX_STRINGS):
                symbols = SymbolTable(elf)
                found = symbols.find("ruby_version"), symbols.find("rb_cObject")
                return None not in found
    return False


def _writable(
    mapped: MappedFile, all_mappings: Sequence[Mapping]
) -> Iterator[tuple[int, int]]:
    """The file's writable mappings, and the zeroed memory that adjoins them."""
    key = mapped.binary.key
    for index, mapping in enumerate(all_mappings):
        if mapping.key != key or not mapping.is_writable:
            continue
        yield mapping.start, mapping.end - mapping.start
        if index + 1 < len(all_mappings):
            after = all_mappings[index + 1]
            if after.start == mapping.end and not after.path and after.is_writable:
                yield after.start, min(after.end - after.start, _MAX_BSS)


def _is_loaded(elf: ElfFile, bias: int, all_mappings: Sequence[Mapping]) -> bool:
    """Is the end of the last writable segment writable?

    The loader maps the whole file as it is first, then the segments, and the zeroed
    memory at the end of that segment last.
    """
    ends = [
        s.address + s.memory_size for s in elf.loads if s.flags & PF_W and s.memory_size
    ]
    last = max(ends, default=0) + bias - 1
    return not ends or any(
        one.start <= last < one.end and one.is_writable for one in all_mappings
    )


def find_version(ruby: Ruby) -> Version:
    """Return the version by the surest way there is; raises UnknownRuby."""
    for way in (_by_symbol, _by_description, _by_name):
        with suppress(RbtraceError):
            version = way(ruby)
            if version is not None:
                return version
    raise UnknownRuby(
        f"cannot find the version of the Ruby in {ruby.path}",
        "Give it with --ruby-version",
    )


def _by_symbol(ruby: Ruby) -> Version | None:
    """``const char ruby_version[]`` (version.c)."""
    symbol = ruby.symbols.find("ruby_version")
    if symbol is None:
        return None
    text = ruby.bytes_at(symbol.address, 16).split(b"\0")[0].decode("ascii", "replace")
    return Version(text, "ruby_version") if _VERSION.fullmatch(text) else None


def _by_description(ruby: Ruby) -> Version | None:
    """``const char ruby_description[]``: ``ruby 3.1.2p20 (2022-04-12 …``."""
    for section in ruby.elf.named(b".rodata"):
        match = _DESCRIPTION.search(ruby.elf.data(section, _MAX_RODATA))
        if match:
            return Version(match[1].decode("ascii"), "ruby_description")
    return None


def _by_name(ruby: Ruby) -> Version | None:
    """``libruby-3.1.so.3.1.2``, ``libruby.so.3.1``, ``ruby3.1``."""
    name = ruby.path.rsplit("/", 1)[-1]
    found = _IN_NAME.findall(name)
    if not found:
        return None
    text = max(found, key=len)
    return Version(text if text.count(".") == 2 else text + ".0", "file name")
