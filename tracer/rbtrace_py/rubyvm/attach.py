"""From a process to what a walker needs: where its VM is, and a layout it can trust.

A layout is taken from DWARF where there is some, else from the table of the version;
either is checked against the binary itself and against the VM as it stands in memory.
Where that does not fit, the binary is run to learn the layout from it (calibration).
What cannot be trusted is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from rbtrace_py.errors import (
    NotPermitted,
    UnknownRuby,
    UnreadableMemory,
    VmNotStarted,
)
from rbtrace_py.linux.memory import Memory, ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.checks import complaint
from rbtrace_py.rubyvm.detect import Ruby, Version, find_ruby, forced_version
from rbtrace_py.rubyvm.dwarf import fields_from_dwarf
from rbtrace_py.rubyvm.layout import Layout, Origin
from rbtrace_py.rubyvm.layouts import VERSIONS, layout_from, nearest, table_for
from rbtrace_py.rubyvm.mining import cross_check, refine
from rbtrace_py.rubyvm.roots import Root, find_symbols, find_vm

SOURCES = (Origin.DWARF, Origin.TABLE, Origin.CALIBRATED)
"""Where a layout may come from, the first that can be trusted counts."""

_YOUNG_SECONDS = 2.0
"""A process that is younger need not be learnt from: it may still be starting."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A Ruby that can be walked.

    version: of the layout; how it was learnt is beside it
    path, build_id: of the file the VM is in; base: what it was moved by
    vm: address of rb_vm_t; symbols: of the table of symbols, None where not found
    agreed: fields that the binary's own code confirms
    notes: what a user should know, a line each
    """

    version: Version
    path: str
    build_id: str
    base: int
    vm: Root
    symbols: Root | None
    layout: Layout
    agreed: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def vm_address(self) -> int:
        """Address of ``rb_vm_t``."""
        return self.vm.address

    @property
    def symbols_address(self) -> int | None:
        """Address of the table of symbols; without it C functions have no names."""
        return None if self.symbols is None else self.symbols.address


def attach(
    process: Process,
    ruby_version: str | None = None,
    sources: Sequence[Origin] = SOURCES,
    memory: Memory | None = None,
    use_cache: bool = True,
) -> Attached:
    """Find the Ruby of ``process``, its roots and its layout.

    ruby_version: instead of what the binary says
    use_cache: believe what an earlier calibration found

    Raises NotRuby (VmNotStarted while it starts), UnknownRuby, NotPermitted,
    NoSuchTarget, UnreadableMemory.
    """
    memory = ProcessMemory(process.pid) if memory is None else memory
    with closing(find_ruby(process)) as ruby:
        version = forced_version(ruby_version) if ruby_version else ruby.version
        vm = _started(memory, ruby)
        symbols = find_symbols(memory, ruby)
        search = _Search(process, ruby, version, memory, vm, use_cache)
        layout, agreed, notes = search.find(sources)
        return Attached(
            version,
            ruby.path,
            ruby.build_id,
            ruby.bias,
            vm,
            symbols,
            layout,
            agreed,
            (*notes, *_notes(symbols)),
        )


def _started(memory: Memory, ruby: Ruby) -> Root:
    try:
        return find_vm(memory, ruby)
    except UnreadableMemory as error:
        # The file is mapped, and its data are not yet where the loader will put them.
        raise VmNotStarted(
            f"the Ruby in {ruby.path} is still being loaded: {error}", "try again"
        ) from error


def _notes(symbols: Root | None) -> list[str]:
    if symbols is None:
        return ["the table of symbols was not found: C functions have no names"]
    return []


class _Search:
    """For a layout that can be trusted."""

    def __init__(
        self,
        process: Process,
        ruby: Ruby,
        version: Version,
        memory: Memory,
        vm: Root,
        use_cache: bool,
    ) -> None:
        self.process = process
        self.ruby = ruby
        self.version = version
        self.memory = memory
        self.vm = vm
        self.use_cache = use_cache
        self.complaints: list[str] = []
        self.is_unmade = True
        self.notes: list[str] = []

    def find(
        self, sources: Sequence[Origin]
    ) -> tuple[Layout, frozenset[str], tuple[str, ...]]:
        """The first layout that agrees with the binary; raises UnknownRuby."""
        hint = ""
        for source in SOURCES:
            if source not in sources:
                continue
            try:
                layout = self._from(source)
            except (UnknownRuby, NotPermitted) as error:
                self.complaints.append(f"{source.value}: {error}")
                hint = error.hint or hint
                self.is_unmade = False
                continue
            if layout is None:
                continue
            layout = refine(self.ruby, layout)
            agreed, objections = self._check(layout)
            if not objections:
                return layout, agreed, (*self.notes, *self.complaints)
            self.complaints += [f"{source.value}: {text}" for text in objections]
        if self.complaints and self.is_unmade:
            raise self._not_started()
        reasons = "; ".join(self.complaints) or "no source of its layout was asked"
        raise UnknownRuby(
            f"the structures of the Ruby {self.version.text} in {self.ruby.path} are"
            f" not known: {reasons}",
            hint or "install its debug symbols, or say --ruby-version",
        )

    def _check(self, layout: Layout) -> tuple[frozenset[str], list[str]]:
        """The fields that the binary's code confirms, and what contradicts them.

        Raises VmNotStarted of a process that has just begun and lacks a part of it.
        """
        mined = cross_check(self.ruby, layout.offsets)
        objections = [str(one) for one in mined.disagreements]
        if not objections:
            found = complaint(self.memory, layout, self.vm.address)
            if found is None:
                return mined.agreed, []
            objections.append(f"in the target's memory, {found.reason}")
            self.is_unmade &= found.is_unmade
            if found.is_unmade and self.process.age < _YOUNG_SECONDS:
                raise self._not_started()
        else:
            self.is_unmade = False
        return mined.agreed, objections

    def _not_started(self) -> VmNotStarted:
        return VmNotStarted(
            f"the Ruby in {self.ruby.path} is still making its VM", "try again"
        )

    def _from(self, source: Origin) -> Layout | None:
        """The layout as ``source`` has it, None where that has nothing."""
        if source is Origin.TABLE:
            return layout_from(table_for(self.version.text), self.version.text)
        if source is Origin.CALIBRATED:
            from rbtrace_py.rubyvm.calibration import calibrate

            return calibrate(self.process, self.ruby, self.version, self.use_cache)
        return self._from_dwarf()

    def _from_dwarf(self) -> Layout | None:
        """By DWARF alone if the version has no table: then all that is needed."""
        minor = self.version.minor
        is_known = minor in VERSIONS
        table = table_for("{}.{}".format(*(minor if is_known else nearest(minor))))
        if is_known:
            table = table_for(self.version.text)
        found = fields_from_dwarf(
            self.ruby.elf,
            self.ruby.file.fd,
            self._path_in_root(),
            (os.fsencode(f"/proc/{self.process.pid}/root"), b""),
            table,
        )
        if found is None:
            return None
        if not is_known:
            missing = table.fields.keys() - found.fields.keys()
            if missing:
                raise UnknownRuby(f"{found.path} lacks {', '.join(sorted(missing))}")
        self.notes.append(f"DWARF: {found.path}")
        return layout_from(table, self.version.text, found.fields)

    def _path_in_root(self) -> bytes:
        """Of the file with the VM; maps show it with a chroot's own path before it."""
        path = self.ruby.file.file.executable[0].raw_path
        root = os.fsencode(self.process.readlink("root") or "/").rstrip(b"/")
        return path.removeprefix(root) if path.startswith(root + b"/") else path
