"""The Ruby in a process: its file, mappings, and version.

A Ruby is found by the symbols that its file defines, not by the file's name. It is the
program itself if statically linked, otherwise a libruby in any directory.
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
"""A string in the string table of each file that defines or uses ``ruby_version``."""

_MAX_STRINGS = 32 << 20
_MAX_RODATA = 64 << 20
_MAX_BSS = 4 << 20
"""Maximum bytes of zeroed data that are searched; CRuby has about 80 kB."""

_VERSION = re.compile(r"[1-9]\.\d{1,2}\.\d{1,2}")
_DESCRIPTION = re.compile(
    rb"ruby ([1-9]\.\d{1,2}\.\d{1,2})(?:p\d+|dev|preview\d|rc\d|) \(20"
)
_IN_NAME = re.compile(r"ruby(?:-|\.so\.|)([1-9]\.\d{1,2}(?:\.\d{1,2})?)(?:$|\D)")


@dataclass(frozen=True, slots=True)
class Version:
    """A version such as ``3.1.2``, and its origin: ``ruby_version``, ``file name`` …"""

    text: str
    origin: str

    @property
    def minor(self) -> tuple[int, int]:
        """``(3, 1)``."""
        major, minor = self.text.split(".")[:2]
        return (int(major), int(minor))


class Ruby(Closing):
    """The open file that contains CRuby's VM, and its mappings in a process.

    Attributes:
        bias: Difference between an address in the process and in the file.
        data: Writable memory of the file (.data and .bss), as (address, size).
        is_loaded: True once the loader has mapped all of it.
    """

    def __init__(
        self, file: OpenBinary, elf: ElfFile, all_mappings: Sequence[Mapping]
    ) -> None:
        self.file = file
        self.elf = elf
        bias = load_bias(elf, file.mappings)
        if bias is None:
            raise BadElf("the file's mapping contradicts its headers")
        self.bias = bias
        self.symbols = SymbolTable(elf)
        self.data = tuple(_writable(file.file, all_mappings))
        self.is_loaded = _is_loaded(elf, bias, all_mappings)
        self.build_id = (build_id(elf) or b"").hex()
        self.version = find_version(self)

    @property
    def path(self) -> str:
        """The path in ``/proc/PID/maps``, safe to print."""
        return self.file.binary.path

    def address(self, name: str) -> int | None:
        """Return the address of ``name`` in the process, or None if it is unknown."""
        symbol = self.symbols.find(name)
        return None if symbol is None else symbol.address + self.bias

    def code(self, address: int, size: int) -> bytes:
        """Return up to ``size`` bytes of code at an address in the process.

        They are read from the file, because a probe may have patched the memory; b"" if
        the address is not in code.
        """
        return self.bytes_at(address - self.bias, size, PF_X)

    def bytes_at(self, address: int, size: int, flags: int = 0) -> bytes:
        """Return up to ``size`` bytes at a virtual address of the file."""
        offset = self.elf.file_offset(address, flags)
        if offset is None:
            return b""
        return self.elf.read(offset, min(size, self.elf.size - offset))

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self.file.close()


def find_ruby(process: Process) -> Ruby:
    """Open the Ruby that ``process`` runs; the caller closes it.

    Raises:
        NotRuby: The process does not run Ruby.
        NotPermitted: A file that may contain Ruby cannot be opened.
        NoSuchTarget: The process has ended.
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
    if process.is_ending():  # its mappings, Ruby or not, are already gone
        raise gone(process.pid)
    raise NotRuby(
        f"process {process.pid} ({process.comm}) does not run Ruby",
        "Name a process of CRuby (MRI), not of JRuby or TruffleRuby",
    )


def forced_version(text: str) -> Version:
    """Parse ``--ruby-version``; raises UsageError if it is invalid."""
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
    """Open the Ruby in ``mapped``, or return None if it does not contain one."""
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
    """Sort files: names with ruby first, then by descending size."""

    def rank(mapped: MappedFile) -> tuple[bool, int]:
        name = mapped.binary.path.rsplit("/", 1)[-1]
        size = sum(mapping.end - mapping.start for mapping in mapped.executable)
        return ("ruby" not in name, -size)

    return sorted(files, key=rank)


def _defines_ruby(elf: ElfFile) -> bool:
    """Return whether a file defines a VM. Extensions may use ``ruby_version`` too."""
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
    """Yield the file's writable mappings, and the zeroed memory adjacent to them."""
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
    """Return whether the end of the last writable segment is writable.

    The loader first maps the whole file, then the segments, and last the zeroed memory
    at the end of that segment.
    """
    ends = [
        s.address + s.memory_size for s in elf.loads if s.flags & PF_W and s.memory_size
    ]
    last = max(ends, default=0) + bias - 1
    return not ends or any(
        one.start <= last < one.end and one.is_writable for one in all_mappings
    )


def find_version(ruby: Ruby) -> Version:
    """Return the version by the most reliable method; raises UnknownRuby."""
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
    """Read ``const char ruby_version[]`` (version.c)."""
    symbol = ruby.symbols.find("ruby_version")
    if symbol is None:
        return None
    text = ruby.bytes_at(symbol.address, 16).split(b"\0")[0].decode("ascii", "replace")
    return Version(text, "ruby_version") if _VERSION.fullmatch(text) else None


def _by_description(ruby: Ruby) -> Version | None:
    """Read ``const char ruby_description[]``: ``ruby 3.1.2p20 (2022-04-12 …``."""
    for section in ruby.elf.named(b".rodata"):
        match = _DESCRIPTION.search(ruby.elf.data(section, _MAX_RODATA))
        if match:
            return Version(match[1].decode("ascii"), "ruby_description")
    return None


def _by_name(ruby: Ruby) -> Version | None:
    """Parse ``libruby-3.1.so.3.1.2``, ``libruby.so.3.1``, or ``ruby3.1``."""
    name = ruby.path.rsplit("/", 1)[-1]
    found = _IN_NAME.findall(name)
    if not found:
        return None
    text = max(found, key=len)
    return Version(text if text.count(".") == 2 else text + ".0", "file name")
