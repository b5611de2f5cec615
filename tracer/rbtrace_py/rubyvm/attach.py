"""Attaching to the Ruby of a process: its VM's address, and a verified layout.

The sources of a layout offer offsets (``layout_sources.py``), and the process's memory
decides among them (``evidence.py``). A layout that memory contradicts is refused.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from rbtrace_py.errors import UnknownRuby, UnreadableMemory, VmNotStarted
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import Memory, ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.checks import Contradiction, Roots
from rbtrace_py.rubyvm.detect import Ruby, Version, find_ruby, forced_version
from rbtrace_py.rubyvm.layout import Layout, Origin, Table
from rbtrace_py.rubyvm.layout_sources import LayoutSources
from rbtrace_py.rubyvm.roots import (
    Root,
    find_object_class,
    find_symbols,
    find_vm,
    find_zjit,
    may_hide_zjit,
    read_word,
)
from rbtrace_py.rubyvm.saved import SavedLayout

_MOST_SHOWN = 8
"""Maximum number of offsets in a refusal."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A Ruby whose stacks can be read.

    Attributes:
        version: Version of the layout.
        path: Path of the file that contains the VM.
        build_id: Build-id of this file.
        base: Its load address minus its address in the file.
        data: Its writable memory (.data and .bss), as (address, size).
        vm: Address of ``rb_vm_t``.
        symbols: Address of the symbol table, or None if not found.
        agreed: Fields that the binary's own code confirms.
        notes: Sentences for the user.
        evidence: Files that were read and sources that disagree, one per line.
        zjit: The word that is not 0 while ZJIT is on; None: this Ruby has no ZJIT.
        is_unknown_zjit: True if frames of ZJIT cannot be trusted (``check_zjit``). Then
            the minor version is newer than the known ones, or it keeps frames in
            JITFrames and the state of ZJIT is unknown.
    """

    version: Version
    path: str
    build_id: str
    base: int
    data: tuple[tuple[int, int], ...]
    vm: Root
    symbols: Root | None
    layout: Layout
    agreed: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    zjit: Root | None = None
    is_unknown_zjit: bool = False

    @property
    def vm_address(self) -> int:
        """Address of ``rb_vm_t``."""
        return self.vm.address

    @property
    def symbols_address(self) -> int | None:
        """Address of the symbol table, without which C functions have no names."""
        return None if self.symbols is None else self.symbols.address

    @property
    def zjit_address(self) -> int | None:
        """Address of the word that is not 0 while ZJIT is on."""
        return None if self.zjit is None else self.zjit.address


def attach(
    process: Process,
    ruby_version: str | None = None,
    saved: SavedLayout | None = None,
    source: Origin | None = None,
    memory: Memory | None = None,
) -> Attached:
    """Find the Ruby of ``process``, its roots, and its layout.

    Args:
        process: Any process.
        ruby_version: Version to use instead of the binary's.
        saved: A layout from a file, which is trusted most.
        source: DWARF or TABLE, to use only that source.
        memory: Memory to read instead of the process's own.

    Raises:
        NotRuby: The process does not run Ruby.
        VmNotStarted: Ruby is still starting.
        UnknownRuby: Memory contradicts every layout.
        UsageError: The saved layout is for another version.
        NotPermitted, NoSuchTarget, UnreadableMemory: The process cannot be read.
    """
    memory = ProcessMemory(process.pid, process) if memory is None else memory
    with closing(find_ruby(process)) as ruby:
        version = forced_version(ruby_version) if ruby_version else ruby.version
        vm = _started(memory, ruby)
        symbols = find_symbols(memory, ruby)
        sources = LayoutSources(ruby, version)
        zjit = find_zjit(ruby)
        is_unknown = sources.is_newer or (
            sources.table.traits.has_jit_frames and may_hide_zjit(ruby)
        )
        if is_unknown:
            _refuse_zjit(process, memory, zjit, ruby.path)
        _ask(sources, process, ruby, saved, source)
        verdict = sources.resolve(
            memory,
            Roots(
                vm.address,
                None if symbols is None else symbols.address,
                find_object_class(memory, ruby),
                None if zjit is None else zjit.address,
            ),
        )
        wrong = verdict.contradiction
        if wrong is not None and not wrong.is_doubt:
            raise _refusal(ruby, version, wrong, verdict.layout)
        if not is_unknown and _has_other_jit_frames(verdict.layout, sources.table):
            is_unknown = True
            _refuse_zjit(process, memory, zjit, ruby.path)
        return Attached(
            version,
            ruby.path,
            ruby.build_id,
            ruby.bias,
            ruby.data,
            vm,
            symbols,
            verdict.layout,
            sources.agreed,
            (*sources.notes, *_notes(symbols)),
            tuple(sources.evidence),
            zjit,
            is_unknown,
        )


def check_zjit(process: Process, memory: Memory, attached: Attached) -> None:
    """Raise UnknownRuby if ZJIT was enabled, or started to compile, after attaching.

    Call this at intervals, because data read while ZJIT is on is wrong.
    """
    if attached.is_unknown_zjit:
        _refuse_zjit(process, memory, attached.zjit, attached.path)


def _started(memory: Memory, ruby: Ruby) -> Root:
    loading = f"the Ruby in {ruby.path} is still being loaded"
    if not ruby.is_loaded:
        raise VmNotStarted(loading, "Try again")
    try:
        return find_vm(memory, ruby)
    except UnreadableMemory as error:
        # Its code still contains the addresses of the file, not those in the process.
        raise VmNotStarted(f"{loading}: {error}", "Try again") from error


def _ask(
    sources: LayoutSources,
    process: Process,
    ruby: Ruby,
    saved: SavedLayout | None,
    source: Origin | None,
) -> None:
    if saved is not None:
        sources.add_saved(saved)
    if source is Origin.TABLE:
        return
    roots = (f"/proc/{process.pid}/root", "")
    has_dwarf = sources.add_dwarf(_path_in_root(process, ruby), roots)
    if source is Origin.DWARF and not has_dwarf:
        raise UnknownRuby(
            f"no DWARF found for {ruby.path}", "Install its debug symbols"
        )


def _path_in_root(process: Process, ruby: Ruby) -> bytes:
    """Return the path of the file with the VM, without the root of its chroot."""
    path = ruby.file.file.executable[0].raw_path
    root = os.fsencode(process.readlink("root") or "/").rstrip(b"/")
    return path.removeprefix(root) if path.startswith(root + b"/") else path


def _notes(symbols: Root | None) -> list[str]:
    if symbols is None:
        return ["symbol table not found: C functions have no names"]
    return []


def _has_other_jit_frames(layout: Layout, table: Table) -> bool:
    """Return whether DWARF defines a JITFrame with other members.

    Before June 2026 it had no stack map, and earlier jit_return had another meaning. A
    larger one may describe several frames.
    """
    if not layout.traits.has_jit_frames or "jit_frame_size" not in table.fields:
        return layout.traits.has_jit_frames
    has_dwarf = layout.origins.get("ec_cfp") is Origin.DWARF
    is_there = layout.origins.get("jit_frame_map_size") is Origin.DWARF
    size = table.fields["jit_frame_size"].offset
    is_same = layout.offsets.jit_frame_size == size
    return has_dwarf and not (is_there and is_same)


def _refusal(
    ruby: Ruby, version: Version, wrong: Contradiction, layout: Layout
) -> UnknownRuby | VmNotStarted:
    if wrong.is_unmade:
        return VmNotStarted(
            f"the Ruby in {ruby.path} is still starting its VM: {wrong.reason}",
            "Try again",
        )
    return UnknownRuby(
        f"unknown structures in Ruby {version.text} ({ruby.path}): in its memory,"
        f" {wrong.reason}{_checked_offsets(wrong, layout)}",
        "Install its debug symbols, or give --layout FILE from an unstripped build",
    )


def _checked_offsets(wrong: Contradiction, layout: Layout) -> str:
    """Return the offsets used by the failed check, as text."""
    known = ((name, getattr(layout.offsets, name)) for name in sorted(wrong.fields))
    texts = [f"{name} {offset}" for name, offset in known if offset is not None]
    more = ", …" if len(texts) > _MOST_SHOWN else ""
    return f" ({', '.join(texts[:_MOST_SHOWN])}{more})" if texts else ""


def _refuse_zjit(
    process: Process, memory: Memory, zjit: Root | None, path: str
) -> None:
    """Raise UnknownRuby if ZJIT is or may be on, and its frames are unknown.

    Since 4.1, the pc and iseq of a control frame are stale under ZJIT.
    """
    if zjit is None:
        # Nothing tells which JIT generated code, if there is any.
        is_on = any(
            one.is_executable and not one.is_file and not one.path.startswith(b"[v")
            for one in mappings(process)
        )
    else:
        is_on = read_word(memory, zjit.address) != 0
    if is_on:
        raise UnknownRuby(
            f"{path} may run ZJIT, whose frames have an unknown layout",
            "Run it without --zjit, or use a newer rbtrace-py",
        )
