"""A core file as a Ruby VM: its roots are found by symbols or given by the user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from rbtrace_py.errors import (
    BadElf,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UnreadableMemory,
    UsageError,
)
from rbtrace_py.linux.binaries import MappedFile, OpenBinary
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.elf.core import CoreFile
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.linux.elf.symbols import build_id
from rbtrace_py.linux.text import safe_text
from rbtrace_py.linux.unpack import open_regular
from rbtrace_py.model.dump import Dump
from rbtrace_py.model.probes import Binary
from rbtrace_py.rubyvm.checks import Roots
from rbtrace_py.rubyvm.detect import Ruby, Version, forced_version
from rbtrace_py.rubyvm.fibers import Fibers
from rbtrace_py.rubyvm.layout import Layout, Offsets
from rbtrace_py.rubyvm.layout_sources import LayoutSources
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.roots import (
    find_object_class,
    find_symbols,
    find_vm,
    find_zjit,
    is_pointer,
    old_symbols_by_shape,
    read_word,
    symbols_by_shape,
)
from rbtrace_py.rubyvm.saved import SavedLayout
from rbtrace_py.rubyvm.vm import RubyVM
from rbtrace_py.session.stacks.deadlocks import deadlocks
from rbtrace_py.session.stacks.dump import dumped, read_stacks, writable
from rbtrace_py.session.stacks.ruby_process import ruby_thread
from rbtrace_py.session.stacks.waits import Waits

VM_SYMBOLS = ("ruby_current_vm_ptr", "ruby_current_vm")
EC_SYMBOLS = ("ruby_current_execution_context_ptr", "ruby_current_ec")
THREAD_SYMBOLS = ("ruby_current_thread",)
TABLE_SYMBOLS = ("ruby_global_symbols", "global_symbols")
ZJIT_SYMBOLS = ("rb_zjit_entry",)
SYMBOLS = (
    *VM_SYMBOLS,
    *EC_SYMBOLS,
    *THREAD_SYMBOLS,
    *TABLE_SYMBOLS,
    *ZJIT_SYMBOLS,
)
"""Names for ``--symbol``: pointers to the VM, an execution context, or a thread (up to
2.4); the symbol table; and the word that is nonzero while ZJIT is on."""

_MOST_DATA = 4 << 20

_IN_PATH = re.compile(
    rb"libruby(?:-\d\.\d)?\.so\.(\d\.\d{1,2}\.\d{1,2})$"
    rb"|/(?:ruby-)?(\d\.\d{1,2}\.\d{1,2})(?:-\w+)?/(?:bin/ruby|lib/libruby)"
    rb"|/lib/(?:[\w-]+/)?ruby/(?:vendor_ruby/|site_ruby/|gems/)?(\d\.\d{1,2}\.\d{1,2})/"
)


_OF_WHAT_RAN = ("fibers", "stack")
"""Checks that also fail if the program was in the middle of an operation, or had
damaged its own stack."""


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Options of a core file's dump.

    Attributes:
        exe: Path of the program or its libruby.
        ruby_version: Version to use instead of the detected one.
        symbols: Addresses by name in ``SYMBOLS``.
        fibers: Read suspended fibers, too.
        saved: Layout from a file, which takes precedence.
        locals: Read arguments and local variables.
    """

    exe: str | None = None
    ruby_version: str | None = None
    symbols: Mapping[str, int] = field(default_factory=dict)
    fibers: bool = False
    saved: SavedLayout | None = None
    locals: bool = False


def parse_symbol(text: str) -> tuple[str, int]:
    """Parse ``NAME=ADDRESS`` of ``--symbol``.

    Args:
        text: The option's value; the address may be hexadecimal with 0x.

    Returns:
        The name and the address.

    Raises:
        UsageError: The name is unknown or the address is invalid.
    """
    name, _, address = text.partition("=")
    if name not in SYMBOLS:
        raise UsageError(
            f"unknown symbol: --symbol {name!r}", f"Use {', '.join(SYMBOLS)}"
        )
    try:
        return name, int(address, 0)
    except ValueError:
        raise UsageError(
            f"--symbol {text!r}: {address!r} is not an address",
            "Write it as NAME=0x7f0dc0c83c58",
        ) from None


def dump_core(path: str, options: CoreOptions | None = None) -> Dump:
    """Read all threads of a core file.

    Args:
        path: The core file, gzipped or not.
        options: Options of the dump.

    Returns:
        The threads, with their stacks and waits.

    Raises:
        BadElf, NotRuby, UnknownRuby, UsageError, UnreadableMemory, RbtraceError: The
            core or the program cannot be opened or read.
    """
    with CoreFile(path) as core, CoreRuby(core, options or CoreOptions()) as ruby:
        return ruby.dump()


class CoreRuby(Closing):
    """The Ruby of ``core``, which the caller closes; raises as ``dump_core`` does."""

    def __init__(self, core: CoreFile, options: CoreOptions) -> None:
        self.core = core
        self.options = options
        self.notes: list[str] = []
        self._tids = {thread.tid for thread in core.notes.threads}
        self._fill()
        self._ruby = self._find_ruby()
        try:
            self.version = self._version()
            version = self.version.text
            self.layout = layout_from(table_for(version), version)
            symbols = self._symbols()
            self._table = symbols
            vm = self._vm()
            self.layout = self._checked_layout(vm, symbols)
            is_tid = self._tids.__contains__ if self._tids else None
            zjit = self._zjit()
            self.vm = RubyVM(core, self.layout, vm, symbols, is_tid, zjit)
        except BaseException:
            self.close()
            raise
        if core.is_truncated:
            self.notes.append("the core file is truncated: memory is missing")

    def close(self) -> None:
        """Close the program; may be called twice."""
        if self._ruby is not None:
            self._ruby.close()

    # ---------------------------------------------------------------- program

    def _fill(self) -> None:
        """Read memory that the core lacks from files, if they are identical."""
        core = self.core
        if self.options.exe is not None:
            core.fill_from(self._path_of(self.options.exe), self.options.exe)
        for path in core.paths():
            if b"ruby" in path.rsplit(b"/", 1)[-1] and os.path.isfile(path):
                with suppress(RbtraceError):
                    core.fill_from(path, path)

    def _path_of(self, exe: str) -> bytes:
        """Return the mapped file that ``exe`` matches by build ID, else by name."""
        core, wanted = self.core, None
        paths = core.paths()
        fd = open_regular(exe)
        try:
            wanted = build_id(ElfFile(fd))
        except BadElf as error:
            raise BadElf(f"{exe}: {error}", error.hint) from error
        finally:
            os.close(fd)
        for path in paths:
            if wanted is not None and core.build_id_of(path) == wanted:
                return path
        name = os.fsencode(os.path.basename(exe))
        for path in paths:
            if path.rsplit(b"/", 1)[-1] == name:
                return path
        raise UsageError(
            f"{exe} is not the program of this core file, or one of its libraries",
            "Give a file that it has mapped: "
            + ", ".join(map(safe_text, _likely(paths))),
        )

    def _find_ruby(self) -> Ruby | None:
        """Return the file that contains the VM, among those that fill the core."""
        mappings = self.core.mappings
        for path, fd in self.core.filled.items():
            own = tuple(one for one in mappings if one.path == path)
            binary = Binary(own[0].device, own[0].inode, own[0].shown_path)
            file = OpenBinary(os.dup(fd), MappedFile(binary, own))
            try:
                ruby = Ruby(file, ElfFile(file.fd), mappings)
                if ruby.address("ruby_version") and ruby.address("rb_cObject"):
                    return ruby
            except RbtraceError:
                pass
            file.close()
        return None

    def _version(self) -> Version:
        if self.options.ruby_version is not None:
            return forced_version(self.options.ruby_version)
        if self._ruby is not None:
            return self._ruby.version
        for path in self.core.paths():
            match = _IN_PATH.search(path)
            if match:
                text = next(filter(None, match.groups())).decode("ascii")
                return Version(text, "file name")
        if not any(b"ruby" in path for path in self.core.paths()):
            raise NotRuby(
                f"{self.core.path} is not from Ruby, or its version is unknown"
            )
        raise UnknownRuby(
            "cannot tell which Ruby the core file is from",
            "Use --ruby-version, or give the program with --exe",
        )

    def _checked_layout(self, vm: int, symbols: int | None) -> Layout:
        """Return the layout, verified by the program and the core's memory.

        Without the program, it is not verified. Memory that the core lacks contradicts
        nothing.
        """
        if self._ruby is None:
            self.notes.append(
                f"read as Ruby {self.layout.version} ({self.version.origin}), not"
                " verified: the program is missing (--exe FILE)"
            )
            return self.layout
        sources = LayoutSources(self._ruby, self.version)
        if self.options.saved is not None:
            sources.add_saved(self.options.saved)
        sources.add_dwarf(self._ruby.file.file.executable[0].raw_path, ("",))
        known = find_object_class(self.core, self._ruby)
        roots = Roots(vm, symbols, known, self._zjit())
        verdict = sources.resolve(self.core, roots)
        wrong = verdict.contradiction
        if wrong is not None and wrong.check in _OF_WHAT_RAN:
            self.notes.append(f"in the core, {wrong.reason}")
        elif wrong is not None and not wrong.is_unreadable:
            raise UnknownRuby(
                f"{self._ruby.path} does not match the known layout of Ruby"
                f" {self.layout.version}: in the core, {wrong.reason}",
                "Use another --ruby-version",
            )
        self.notes += sources.notes
        return verdict.layout

    # ------------------------------------------------------------------ roots

    def _given(self, names: tuple[str, ...]) -> int | None:
        given = self.options.symbols
        return next((given[name] for name in names if name in given), None)

    def _zjit(self) -> int | None:
        """Return the address of the word that says whether ZJIT is on; None: unknown.

        Without this word, frames of ZJIT in 4.1 cannot be read, and appear as unknown.
        """
        given = self._given(ZJIT_SYMBOLS)
        found = find_zjit(self._ruby) if given is None and self._ruby else None
        return given if found is None else found.address

    def _symbols(self) -> int | None:
        given = self._given(TABLE_SYMBOLS)
        if given is not None:
            return given
        if self._ruby is not None:
            root = find_symbols(self.core, self._ruby)
        else:
            is_old = self.layout.traits.old_tables
            search = old_symbols_by_shape if is_old else symbols_by_shape
            root = search(self.core, _data_of_ruby(self.core))
        if root is not None:
            return root.address
        self.notes.append(
            "symbol table not found: C functions have no names (--symbol"
            " ruby_global_symbols=ADDRESS)"
        )
        return None

    def _vm(self) -> int:
        """Return the address of ``rb_vm_t``, from the given symbols or the program."""
        offsets = self.layout.offsets
        pointer = self._given(VM_SYMBOLS)
        if pointer is not None:
            return self._pointed(pointer)
        pointer = self._given(EC_SYMBOLS)
        if pointer is not None:
            return self._vm_of(self._thread_of(self._pointed(pointer), offsets))
        pointer = self._given(THREAD_SYMBOLS)
        if pointer is not None:
            return self._vm_of(self._pointed(pointer))
        if self._ruby is None:
            raise UnknownRuby(
                "cannot find the VM in the core file",
                "Give the program with --exe FILE, or the address with --symbol"
                " ruby_current_vm_ptr=ADDRESS",
            )
        return find_vm(self.core, self._ruby).address

    def _thread_of(self, ec: int, offsets: Offsets) -> int:
        if offsets.ec_thread is None:
            return ec  # up to 2.4, the thread serves as the execution context
        return self._pointed(ec + offsets.ec_thread)

    def _vm_of(self, thread: int) -> int:
        return self._pointed(thread + self.layout.offsets.th_vm)

    def _pointed(self, address: int) -> int:
        """Return the pointer at ``address``; raise UnknownRuby if it is not one."""
        try:
            value = read_word(self.core, address)
        except UnreadableMemory as error:
            raise UnknownRuby(str(error), "Check the address") from error
        if not is_pointer(value):
            raise UnknownRuby(
                f"no pointer at {address:#x} in the core file ({value:#x})",
                "Check the address and the version",
            )
        return value

    # ------------------------------------------------------------------- dump

    def dump(self) -> Dump:
        """Read all threads; raise BadElf without any."""
        core = self.core
        stacks = read_stacks(
            self.vm,
            lambda: Fibers(self.vm, self._table, writable(core.mappings)),
            self.options.fibers,
        )
        if self.options.locals:
            stacks.read_locals(self.vm.values)
        pid = core.notes.pid or 0
        known = {
            one.address: ruby_thread(pid, one.tid, one) for one, _ in stacks.threads
        }
        waits = Waits(self.vm.values, stacks.seen(), known, None)
        threads = tuple(
            dumped(stacks, one, walked, waits) for one, walked in stacks.threads
        )
        if not threads:
            raise BadElf(
                f"{core.path}: no Ruby thread found",
                "Check the address and the version",
            )
        return Dump(
            pid=pid,
            command=core.notes.command or core.notes.comm,
            ruby_version=self.version.text,
            threads=threads,
            core=safe_text(os.fsencode(core.path)),
            signal=core.notes.signal,
            notes=(*self.notes, *stacks.notes),
            deadlocks=deadlocks(threads),
        )


def _likely(paths: list[bytes]) -> list[bytes]:
    """Return paths that may be a Ruby, or else the first ones."""
    return [path for path in paths if b"ruby" in path.rsplit(b"/", 1)[-1]] or paths[:3]


def _data_of_ruby(core: CoreFile) -> list[tuple[int, int]]:
    """Return writable memory of files called ruby, and adjoining .data and .bss."""
    found: list[tuple[int, int]] = []
    end = 0
    for one in core.mappings:
        is_ruby = b"ruby" in one.path.rsplit(b"/", 1)[-1]
        follows = one.start == end and not one.path
        if one.is_writable and (is_ruby or follows):
            found.append((one.start, min(one.end - one.start, _MOST_DATA)))
            end = one.end if is_ruby else 0
    return found
