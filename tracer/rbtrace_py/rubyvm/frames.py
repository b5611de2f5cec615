"""Frames of all stacks seen, as a tree, which makes repeated stacks cheap.

A node is a control frame on top of the frames below it. The key of a child consists of
the frame's raw words: iseq, pc, method entry, flags. Checks, names, and lines of a
frame are therefore computed once per place in a program.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from time import monotonic

from rbtrace_py.errors import NoSuchTarget, UnreadableMemory
from rbtrace_py.linux.memory import gathered
from rbtrace_py.model.stacks import CHANGED, GC_FRAME, Frame, FrameKind, Stack
from rbtrace_py.rubyvm.calls import CallSites
from rbtrace_py.rubyvm.iseqs import Iseq, IseqKind, Iseqs
from rbtrace_py.rubyvm.names import Method, Names
from rbtrace_py.rubyvm.values import Values

_MOST_NODES = 1 << 17
_MOST_HELD = 1 << 22
"""Maximum references to frames in all cached stacks."""

_MOST_TEXT = 1 << 26
"""Maximum characters of names and paths in all nodes."""
UNKNOWN_PC = 0
"""The pc of a frame whose pc is stale: the innermost frame of a JIT, which writes the
pc only before calls. Its line is unknown."""
MOST_SECONDS = 10.0
"""Maximum seconds for new frames and repeated reads per sampling pass, because a
malicious target may make them take forever."""

_COMPILERS = ("RubyVM::MJIT::", "RubyVM::RJIT::")
_LAMBDA = 0x100
"""VM_FRAME_FLAG_LAMBDA (vm_core.h, 2.5 and later)."""
_HIDDEN = ("IFUNC", "DUMMY")
_SVAR = struct.Struct("=2Q")
"""``struct vm_svar`` (internal/imemo.h) up to ``cref_or_me``; flags come first."""

_MODES = tuple(
    Frame(FrameKind.GC, name, name, "", None)
    for name in ("(marking)", "(sweeping)", "(compacting)")
)
_COLLECTOR_FRAMES = ((), (GC_FRAME,), *((GC_FRAME, mode) for mode in _MODES))


class FrameNode:
    """One frame on top of another; ``below`` is the next visible one.

    Attributes:
        ruby: The frame whose path and line C functions on top of this node have.
        is_leaf: True if the frame cannot have called another: it has not run an
            instruction, or its pc is unknown.
        is_sure: True if the frame below can have called it.
    """

    __slots__ = (
        "below",
        "ended_stacks",
        "frame",
        "is_leaf",
        "is_sure",
        "iseq",
        "pc",
        "ruby",
        "stack",
    )

    def __init__(self, below: FrameNode | None, frame: Frame | None) -> None:
        self.below = below
        self.frame = frame
        # Not a node: a node that refers to itself is freed only by the collector.
        self.ruby: Frame | None = below.ruby if below else None
        self.iseq: Iseq | None = None
        self.pc = 0
        self.is_leaf = False
        self.is_sure = True
        self.stack: Stack | None = None
        self.ended_stacks: dict[tuple[bool, int], Stack] | None = None

    @property
    def is_ruby(self) -> bool:
        """True if it is shown as a frame of Ruby code."""
        return self.frame is not None and self.frame is self.ruby


class FrameTree:
    """Makes nodes of raw frames; bounded: if it becomes too large, it starts over.

    Starting over increments ``generation`` and invalidates all earlier nodes.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self._iseqs = Iseqs(values)
        self._names = Names(values, self._iseqs)
        traits = values.traits
        self._mask = traits.frame_magic_mask
        magics = traits.frame_magics
        self._c_magic = magics["CFUNC"]
        self._hidden = frozenset(magics[name] for name in _HIDDEN if name in magics)
        self._magics = frozenset(magics.values())
        self._block_magic = magics["BLOCK"]
        self.block_magic, self.magic_mask = self._block_magic, self._mask
        self.calls = CallSites(values, self._iseqs, self._names)
        self._entries: set[int] = set()
        self._until: float | None = None
        self.generation = self._replaced_before = 0
        self._start()

    def _start(self) -> None:
        self.generation += 1
        self._text = 0
        self.root = FrameNode(None, None)
        self.nodes: dict[tuple[FrameNode, int, int, int, int], FrameNode] = {}
        self._unsure: dict[FrameNode, tuple[FrameNode, int, int]] = {}
        self._held = 0
        self._frames: dict[tuple[int, int, int], tuple[Iseq, Method | None, Frame]] = {}

    @property
    def replaced(self) -> int:
        """Number of times that code was found replaced by other code."""
        return self._iseqs.replaced + self._names.replaced

    def revalidate(self) -> None:
        """Check that code read earlier is still there; start over if it is not.

        Iseqs and method entries are garbage-collected, and others get their addresses.
        """
        self._entries.clear()
        self.calls.clear()
        was_replaced = self.replaced != self._replaced_before
        self._replaced_before = self.replaced
        stale = self._iseqs.revalidate()
        if self._names.revalidate() or stale or was_replaced:
            self._start()

    def has_same_code(
        self, iseqs: Iterable[int], functions: Iterable[int], methods: Iterable[int]
    ) -> bool:
        """Return whether the code is unchanged; start over if it is not.

        Args:
            iseqs: Addresses of iseqs.
            functions: Method entries of C functions, as in ``Names.are_unchanged``.
            methods: Method entries of Ruby code.
        """
        was_replaced = self.replaced != self._replaced_before
        is_same = not was_replaced and self._iseqs.are_unchanged(iseqs)
        if is_same and self._names.are_unchanged(functions, methods):
            self._take_fresh()
            return True
        self.revalidate()
        return False

    def trim(self) -> None:
        """Start over if the tree is too large; call this before a sampling pass."""
        self._until = None
        if (
            max(len(self.nodes), len(self._frames)) > _MOST_NODES
            or self._held > _MOST_HELD
            or self._text > _MOST_TEXT
        ):
            self._start()

    def note_fresh(self) -> None:
        """Record the code that is read from now on, for ``take_fresh``."""
        if self._iseqs.fresh is None:
            self._take_fresh()

    def _take_fresh(self) -> set[int]:
        fresh = (self._iseqs.fresh or set()) | (self._names.fresh or set())
        self._iseqs.fresh, self._names.fresh = set(), set()
        return fresh

    def take_fresh(self) -> list[tuple[int, bool]]:
        """Return the newly read code, as (address, is_old).

        Newly read means since the last call, or since all code was found unchanged. Old
        code has survived a collection.
        """
        fresh = list(self._take_fresh())
        promoted = self.values.traits.promoted
        found = gathered(self.values.memory, [(address, 8) for address in fresh])
        flags = [int.from_bytes(data or b"", "little") for data in found]
        old = [word & promoted == promoted for word in flags]
        return list(zip(fresh, old, strict=True))

    def is_late(self) -> bool:
        """Return whether this pass has taken longer than any honest target causes."""
        now = monotonic()
        if self._until is None:
            self._until = now + MOST_SECONDS
        return now > self._until

    def child(
        self,
        node: FrameNode,
        iseq: int,
        pc: int,
        method: int,
        flags: int,
        is_kept: bool = True,
    ) -> FrameNode | None:
        """Return the node of a frame on top of ``node``, or None for an invalid frame.

        Args:
            node: The node below.
            iseq: Address of the iseq.
            pc: The frame's pc.
            method: The word with the method entry.
            flags: The frame's flags.
            is_kept: Store the node in ``nodes``, with all below it, if it is complete.
        """
        if self._text > _MOST_TEXT or self.is_late():
            return None
        while self.renew_entry(method):
            # It was collected. The code's next method, or an svar of that method, may
            # be at its address.
            method = self.entry(method)
        try:
            made = self._make(node, iseq, pc, method, flags)
            if made is None or not made.is_sure:
                self._renew(node, iseq, method)
                method = self.entry(method)
                made = self._make(node, iseq, pc, method, flags)
        except UnreadableMemory:
            return None
        if made is not None:
            if is_kept:
                self.nodes[node, iseq, pc, method, flags] = made
                if not made.is_sure:
                    self._unsure[made] = node, method, flags
            frame = made.frame
            if frame is not None:
                self._text += len(frame.name) + len(frame.label) + len(frame.path)
        return made

    def _renew(self, node: FrameNode, iseq: int, method: int) -> None:
        """Forget cached facts about a frame that are no longer true."""
        self.calls.forget(node.pc)
        self._entries.discard(method)
        self._names.renew(method)
        self._iseqs.renew(iseq)

    def recheck(self, made: FrameNode) -> None:
        """Check again whether a frame that was not sure can have been called.

        Facts read earlier may have been outdated, or may have become available: code,
        and call caches. If code was replaced, everything starts over.
        """
        known = self._unsure.get(made)
        if known is None:
            return
        node, method, flags = known
        self.calls.forget(node.pc)
        self._entries.discard(method)
        is_stale = self._names.renew(method)
        for iseq in (node.iseq, made.iseq):
            is_stale |= iseq is not None and self._iseqs.renew(iseq.address)
        if is_stale:
            self._start()
            return
        try:
            made.is_sure = self._is_sure(node, made, self._method(method), flags)
        except UnreadableMemory:
            return
        if made.is_sure:
            del self._unsure[made]

    def _make(
        self, node: FrameNode, iseq: int, pc: int, method: int, flags: int
    ) -> FrameNode | None:
        made = self._plain(node, iseq, pc, method, flags)
        if made is not None and made.frame is not None:
            made.is_sure = self._is_sure(node, made, self._method(method), flags)
        return made

    def placed(
        self, node: FrameNode, iseq: int, pc: int, method: int, flags: int
    ) -> FrameNode | None:
        """Return the node of a frame that is known to be on top of ``node``.

        The node is not stored.

        Args:
            node: The node below.
            iseq: Address of the iseq.
            pc: The frame's pc.
            method: The method entry. If it is 0 (unknown), the name has no class.
            flags: The frame's flags.

        Returns:
            The node, or None if the code does not exist any more.
        """
        if self._text > _MOST_TEXT or self.is_late():
            return None
        try:
            made = self._plain(node, iseq, pc, method, flags, is_certain=True)
        except UnreadableMemory:
            return None
        if made is not None and made.frame is not None:
            self._text += len(made.frame.name) + len(made.frame.path)
        return made

    def is_hidden(self, flags: int) -> bool:
        """Return whether frames with these flags are hidden."""
        return flags & self._mask in self._hidden

    def is_code_of(self, iseq: int, entry: int) -> bool:
        """Return whether the iseq at an address is the code of this method entry."""
        try:
            found = self._iseqs.get(iseq)
            return found is not None and self._is_its_code(found, self._method(entry))
        except UnreadableMemory:
            return False

    def _plain(
        self,
        node: FrameNode,
        iseq: int,
        pc: int,
        method: int,
        flags: int,
        is_certain: bool = False,
    ) -> FrameNode | None:
        magic = flags & self._mask
        if flags >> 32 or magic not in self._magics or node.is_leaf:
            return None
        if self.is_hidden(flags):
            return FrameNode(node, None)
        if magic == self._c_magic:
            return self._c_node(node, method) if iseq == 0 else None
        found = self._iseqs.get(iseq)
        if found is None or not (found.holds(pc) or pc == UNKNOWN_PC):
            return None
        entry = self._method(method)
        is_method = self._iseqs.local_kind(found) == IseqKind.METHOD
        if entry is None and is_method and not is_certain:
            return None
        return self._ruby_node(node, found, pc, entry, method)

    def _is_sure(
        self, node: FrameNode, made: FrameNode, entry: Method | None, flags: int
    ) -> bool:
        """Return whether ``node`` can have called the frame ``made``."""
        if made.iseq is None:
            return entry is None or self._can_call_c(node, entry)
        is_block = flags & self._mask == self._block_magic
        if is_block and flags & _LAMBDA and self._is_no_call(node):
            return True  # ``when ->(x) { … }``: checkmatch calls it
        return self._is_its_code(made.iseq, entry) and self._can_call(
            node, made.iseq, entry, is_block
        )

    def _is_its_code(self, iseq: Iseq, entry: Method | None) -> bool:
        """Return whether the iseq belongs to the method that the environment names.

        Frames and environments are not read at the same moment.
        """
        if entry is None or self._iseqs.local_kind(iseq) != IseqKind.METHOD:
            return True
        if entry.iseq:
            return entry.iseq == (iseq.local or iseq.address)
        return not entry.is_c

    def _can_call(
        self, node: FrameNode, iseq: Iseq, entry: Method | None, is_block: bool
    ) -> bool:
        """Return whether the Ruby frame ``node`` can have called one of ``iseq``."""
        if node.iseq is None or not self.calls.is_known:
            return True
        site = self.calls.before(node.iseq, node.pc)
        if site.mid is None and node.iseq.is_internal:
            return True  # a C function without its own frame (invokebuiltin)
        if is_block and self.calls.can_yield(site):
            return True
        if iseq.kind == IseqKind.CLASS:
            return site.body == iseq.address
        if iseq.is_handler:
            return iseq.parent == node.iseq.address
        if entry is None:
            return False
        # A JIT written in Ruby (3.2's MJIT, RJIT) runs at any instruction.
        is_compiler = entry.prefix.startswith(_COMPILERS)
        return is_compiler or self.calls.can_call(site, entry.called, entry.name)

    def _is_no_call(self, node: FrameNode) -> bool:
        """Return whether the frame is at an instruction that names no method."""
        if node.iseq is None or not self.calls.is_known:
            return False
        return self.calls.before(node.iseq, node.pc).mid is None

    def passes_block(self, node: FrameNode, block: int) -> bool:
        """Return whether the current call of ``node`` passes the block ``block``.

        This is asked only for blocks whose outer frame still has its variables on the
        stack. Once a block has become a Proc, they are elsewhere.
        """
        if node.iseq is None or not self.calls.is_known:
            return True
        return self.calls.before(node.iseq, node.pc).block == block

    def _c_node(self, node: FrameNode, word: int) -> FrameNode | None:
        method = self._method(word)
        if method is None or not (method.is_c or method.kind is None):
            return None
        name, label = self._names.c_frame(method)
        return self._like_c(node, name, label)

    def _can_call_c(self, node: FrameNode, method: Method) -> bool:
        """Return whether the frame ``node`` can have called a C function."""
        if node.iseq is None or not self.calls.is_known:
            return True
        site = self.calls.before(node.iseq, node.pc)
        is_builtin = site.mid is None and node.iseq.is_internal
        return is_builtin or self.calls.can_call(site, method.called, method.name)

    def _like_c(self, node: FrameNode, name: str, label: str) -> FrameNode:
        caller = node.ruby
        path, line = (caller.path, caller.line) if caller else ("", None)
        return FrameNode(node, Frame(FrameKind.C, name, label, path, line))

    def _ruby_node(
        self, node: FrameNode, iseq: Iseq, pc: int, method: Method | None, word: int
    ) -> FrameNode:
        """Make a node; ``word`` is the word with ``method``."""
        if iseq.is_internal and self._is_like_c(iseq):
            made = self._like_c(node, *self._names.iseq_frame(iseq, method))
        else:
            frame = self._ruby_frame(iseq, pc, method, word)
            made = FrameNode(self._below(node, iseq), frame)
            made.ruby = frame
        made.iseq, made.pc = iseq, pc
        made.is_leaf = pc in (iseq.begin, UNKNOWN_PC)
        return made

    def _ruby_frame(
        self, iseq: Iseq, pc: int, method: Method | None, word: int
    ) -> Frame:
        """Return the frame of a place in code, shared by all stacks."""
        key = (iseq.address, pc, word)
        known = self._frames.get(key)
        # Other code may have been placed at these addresses.
        if known is not None and known[0] is iseq and known[1] is method:
            return known[2]
        name, label = self._names.iseq_frame(iseq, method)
        line = None if pc == UNKNOWN_PC else self._iseqs.line(iseq, pc)
        frame = Frame(FrameKind.RUBY, name, label, iseq.path, line)
        self._frames[key] = (iseq, method, frame)
        return frame

    def _is_like_c(self, iseq: Iseq) -> bool:
        """Return whether Ruby itself shows frames of this iseq like C functions."""
        traits = self.values.traits
        return traits.internal_as_c or f"{iseq.path} {iseq.label}" in traits.c_traced

    def _below(self, node: FrameNode, iseq: Iseq) -> FrameNode:
        """Return the frame below, skipping a method that its ``rescue`` hides."""
        is_hiding = iseq.is_handler and self.values.traits.qualified_labels
        if is_hiding and node.is_ruby and node.below is not None:
            return node.below
        return node

    def _method(self, word: int) -> Method | None:
        """Return the method that a frame's environment names, maybe through an svar."""
        entry = self.entry(word)
        return self._names.method(entry) if entry else None

    def entry(self, word: int) -> int:
        """Return the address of the method entry to which ``ep[-2]`` refers, or 0.

        The word may be a cref instead, or an svar that contains either
        (check_method_entry of vm_insnhelper.c). Only entries are cached: an svar lives
        as long as its frame, and its address is reused.
        """
        if word in self._entries:
            return word
        try:
            found = self._find_entry(word)
        except (UnreadableMemory, NoSuchTarget):
            return 0
        if found:
            if len(self._entries) >= _MOST_NODES:
                self._entries.clear()
            self._entries.add(found)
        return found

    def renew_entry(self, word: int) -> bool:
        """Forget a method entry if something else is at its address now."""
        is_renewed = self._names.renew(word)
        if is_renewed:
            self._entries.discard(word)
        return is_renewed

    def _find_entry(self, word: int) -> int:
        traits, values = self.values.traits, self.values
        if traits.svar_imemo is not None:
            if not values.is_object(word):
                return 0
            flags, held = _SVAR.unpack(values.memory.read(word, _SVAR.size))
            kind = values.imemo_kind_of(flags)
            if kind == traits.svar_imemo:
                if held in self._entries:
                    return int(held)
                word, kind = held, values.imemo_kind(held)
            if kind != traits.ment_imemo:
                return 0
        return word if self._names.method(word) is not None else 0

    def stack(
        self, node: FrameNode, collecting: int = 0, is_changed: bool = False
    ) -> Stack:
        """Return the frames up to ``node`` with ``frames_on_top``."""
        if node.stack is None:
            node.stack = Stack(_frames(node))
            self._held += len(node.stack.frames)
        if not (collecting or is_changed):
            return node.stack
        # Not nodes: they and this node would keep each other alive.
        stacks = node.ended_stacks = node.ended_stacks or {}
        found = stacks.get((is_changed, collecting))
        if found is None:
            upon = frames_on_top(collecting, is_changed)
            found = stacks[is_changed, collecting] = Stack(node.stack.frames + upon)
            self._held += len(found.frames)
        return found


def frames_on_top(collecting: int, is_changed: bool) -> tuple[Frame, ...]:
    """Return the frames that the VM does not have, newest last.

    Args:
        collecting: 0 without a collection, else 1 + ``enum gc_mode`` (gc.c, since 2.2).
        is_changed: Add ``CHANGED`` in place of the newest frames of the VM.
    """
    return ((CHANGED,) if is_changed else ()) + _COLLECTOR_FRAMES[collecting]


def _frames(node: FrameNode) -> tuple[Frame, ...]:
    found: list[Frame] = []
    place: FrameNode | None = node
    while place is not None:
        if place.frame is not None:
            found.append(place.frame)
        place = place.below
    found.reverse()
    return tuple(found)
