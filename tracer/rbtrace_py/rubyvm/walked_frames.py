"""Names for stacks that the kernel walked: from raw frames to a stack.

A thread stands still while the kernel walks its stack, so each frame can have called
the next one, except for the newest, which may be incomplete. Names are read a little
later, when code may have been freed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.model.stacks import Frame, FrameKind, SampleFlags, Stack
from rbtrace_py.rubyvm.frames import FrameNode, FrameTree, frames_on_top
from rbtrace_py.rubyvm.late_code import NOT_NAMED

UNRESOLVED = Frame(FrameKind.MARKER, "(unresolved)", "(unresolved)", "", None)
ENDED = Frame(FrameKind.MARKER, "(unresolved)", "(unresolved)", "", None)
"""Markers of frames whose code was freed before its name was read, or whose process had
ended (ENDED)."""

_WORDS = 4
_FRAME = struct.Struct(f"={_WORDS}Q")
"""A frame from the kernel: iseq, pc, method entry, flags."""
_RAW = struct.Struct(f"{_FRAME.size}s")
_BY_SVAR = 1 << 63
"""A flag, above the 32 flag bits, of a frame whose method entry came from an svar."""
_MOST_PLACES = 1 << 15
_MOST_HELD = 1 << 20
"""Maximum references to frames in all cached stacks."""
_MOST_ENTRIES = 1 << 15


class _Place:
    """A raw frame's meaning, independent of the frames below.

    Attributes:
        node: Node of the frame, on top of some other frame.
        frame: The visible frame, or None.
        ruby: The Ruby frame whose path and line C functions on top of it have.
        hides: True if the Ruby frame below is hidden, like a method below its
            ``rescue``.
    """

    __slots__ = ("frame", "hides", "node", "ruby")

    def __init__(self, node: FrameNode, hides: bool = False) -> None:
        self.node = node
        self.frame = node.frame
        self.ruby = node.ruby
        self.hides = hides


class WalkedFrames:
    """Names frames with the data of ``tree``; the caches are bounded."""

    def __init__(self, tree: FrameTree) -> None:
        self._tree = tree
        self._start()

    def _start(self) -> None:
        self._state = self._tree.generation, self._tree.replaced
        self._entries: dict[int, int] = {}
        self._root = _Place(FrameNode(None, None))
        # Most Ruby frames are the same on top of any other. All others depend on the
        # Ruby frame below.
        self._places: dict[bytes, _Place] = {}
        self._upon: dict[tuple[bytes, int], _Place] = {}
        self._newest: dict[tuple[bytes, _Place], _Place] = {}
        # By the ids of their frames, which the stacks keep alive.
        self._stacks: dict[bytes, tuple[Stack, SampleFlags]] = {}
        self._held = 0

    def has_same_code(self, stacks: Iterable[memoryview]) -> bool:
        """Return whether the code of these stacks is unchanged."""
        iseqs: set[int] = set()
        functions: set[int] = set()
        methods: set[int] = set()
        for frames in stacks:
            words = frames.tolist()
            codes, entries = words[::_WORDS], words[2::_WORDS]
            iseqs.update(codes)
            methods.update(entries)
            functions.update(
                entry for code, entry in zip(codes, entries, strict=True) if not code
            )
        return self._tree.has_same_code(iseqs, functions, methods - functions)

    def stack(self, frames: memoryview, collecting: int) -> tuple[Stack, SampleFlags]:
        """Return the stack of frames from the kernel, newest first.

        ``CHANGED`` replaces its newest frame if that was being pushed.

        Args:
            frames: Words of the frames.
            collecting: As in ``WalkedStack``.
        """
        kept = max(len(self._places), len(self._upon), len(self._newest))
        state = self._tree.generation, self._tree.replaced
        if state != self._state or kept > _MOST_PLACES:
            self._start()
        raws = [raw for (raw,) in _RAW.iter_unpack(frames)]
        place_of, upon = self._places.get, self._upon.get
        shown: list[Frame] = []
        add = shown.append
        below = self._root
        for raw in reversed(raws[1:]):
            place = place_of(raw)
            if place is not None:
                assert place.frame is not None
                add(place.frame)
            else:
                place = upon((raw, id(below.ruby))) or self._find(raw, below)
                _show(place, below, shown)
            below = place
        newest = self._find_newest(raws[0], below) if raws else self._root
        if newest is None:
            shown += frames_on_top(0, is_changed=True)
            stack, flags = self._stack(shown)
            return stack, flags | SampleFlags.TRIMMED
        _show(newest, below, shown)
        shown += frames_on_top(collecting, is_changed=False)
        return self._stack(shown)

    def _stack(self, shown: list[Frame]) -> tuple[Stack, SampleFlags]:
        """Return the shared stack of these frames, and its flags."""
        key = array("Q", map(id, shown)).tobytes()
        known = self._stacks.get(key)
        if known is None:
            own = SampleFlags.CLEAN
            if any(frame is UNRESOLVED for frame in shown):
                own = SampleFlags.UNRESOLVED
            if any(frame is ENDED for frame in shown):
                own |= SampleFlags.UNRESOLVED | SampleFlags.ENDED
            self._held += len(shown)
            if self._held > _MOST_HELD:
                self._stacks.clear()
                self._held = len(shown)
            known = self._stacks[key] = Stack(tuple(shown)), own
        return known

    def _find(self, raw: bytes, below: _Place) -> _Place:
        """Return the meaning of a frame that has called the next one."""
        iseq, pc, word, flags = _FRAME.unpack(raw)
        if iseq == NOT_NAMED:
            return _Place(FrameNode(below.node, UNRESOLVED))
        if self._tree.is_hidden(flags):  # hidden frames have no iseq
            hidden = _Place(FrameNode(below.node, None))
            self._upon[raw, id(below.ruby)] = hidden
            return hidden
        entry, lasts = self._entry(iseq, word)
        if not lasts:
            # A word that may refer to another entry next time is replaced by the entry.
            raw = _FRAME.pack(iseq, pc, entry, flags | _BY_SVAR)
            place = self._places.get(raw) or self._upon.get((raw, id(below.ruby)))
            if place is not None:
                return place
        try:
            node = self._tree.placed(below.node, iseq, pc, entry, flags)
        except NoSuchTarget:
            return _Place(FrameNode(below.node, ENDED))
        if node is None or node.is_leaf:
            place = _Place(FrameNode(below.node, UNRESOLVED))
        else:
            place = _Place(node, node.below is not below.node)
        if place.node.is_ruby and not place.hides:
            self._places[raw] = place
        elif place.frame is not UNRESOLVED:  # other code may get its address
            self._upon[raw, id(below.ruby)] = place
        return place

    def _find_newest(self, raw: bytes, below: _Place) -> _Place | None:
        """Return the meaning of the newest frame; None if it is incomplete."""
        known = self._newest.get((raw, below))
        if known is not None:
            return known
        iseq, pc, word, flags = _FRAME.unpack(raw)
        if iseq == NOT_NAMED:
            return _Place(FrameNode(below.node, UNRESOLVED))
        entry, lasts = self._entry(iseq, word)
        try:
            node = self._tree.child(below.node, iseq, pc, entry, flags, is_kept=False)
        except NoSuchTarget:
            return _Place(FrameNode(below.node, ENDED))
        if node is None or not node.is_sure:
            return None
        place = _Place(node, node.below is not below.node)
        if lasts:
            self._newest[raw, below] = place
        return place

    def _entry(self, iseq: int, word: int) -> tuple[int, bool]:
        """Return a frame's method entry, and whether the word always refers to it.

        The word may refer to an svar, which is gone with the frame. Then anything may
        be at its address, such as another frame's svar. The last entry of the same code
        is used then.
        """
        tree = self._tree
        entry = tree.entry(word) if word else 0
        if not iseq:
            return entry, True
        is_its = bool(entry) and tree.is_code_of(iseq, entry)
        if entry and not is_its and tree.renew_entry(entry):
            entry = tree.entry(word)
            is_its = bool(entry) and tree.is_code_of(iseq, entry)
        lasts = entry in (0, word)
        if not is_its:
            last = self._entries.get(iseq, 0)
            return (last if last and tree.is_code_of(iseq, last) else 0), False
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries.clear()
        self._entries[iseq] = entry
        return entry, lasts


def _show(place: _Place, below: _Place, shown: list[Frame]) -> None:
    if place.hides and below.frame is below.ruby:
        shown.pop()
    if place.frame is not None:
        shown.append(place.frame)
