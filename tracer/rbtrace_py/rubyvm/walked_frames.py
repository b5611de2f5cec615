"""Names for stacks that the kernel walked: raw frames in, a stack out.

A thread stands still while the kernel walks its stack, so one frame can call the next
one in it, but for the newest, which may have been pushed in part. Its names are read
somewhat later, and code may be gone by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from rbtrace_py.model.stacks import Frame, FrameKind, SampleFlags, Stack
from rbtrace_py.rubyvm.frames import FrameNode, FrameTree

UNRESOLVED = Frame(FrameKind.MARKER, "(unresolved)", "(unresolved)", "", None)
"""In place of a frame whose code was gone before its name was read."""

_WORDS = 4
"""Words of a frame: iseq, pc, method entry, flags."""
_RUN = 16 * _WORDS
"""Words of the frames that are looked up at once, from the oldest on: most stacks have
most of them in common."""
_MOST_NODES = 1 << 15
_MOST_RUNS = 1 << 12
_MOST_ENTRIES = 1 << 15

_Key = tuple[FrameNode, int, int, int, int]


class WalkedFrames:
    """Names frames by what ``tree`` knows of the VM; keeps them, bounded."""

    def __init__(self, tree: FrameTree) -> None:
        self._tree = tree
        self._lasts = True
        self._start()

    def _start(self) -> None:
        self._generation = self._tree.generation
        self._entries: dict[int, int] = {}
        self._root = FrameNode(None, None)
        self._nodes: dict[_Key, FrameNode] = {}
        self._places: dict[tuple[int, int, int, int], FrameNode] = {}
        self._runs: dict[tuple[FrameNode, bytes], tuple[FrameNode, SampleFlags]] = {}

    def has_same_code(self, stacks: Iterable[memoryview]) -> bool:
        """Return whether the code of these stacks is still what is known of it."""
        iseqs: set[int] = set()
        entries: set[int] = set()
        for frames in stacks:
            words = frames.tolist()
            iseqs.update(words[::_WORDS])
            entries.update(words[2::_WORDS])
        return self._tree.has_same_code(iseqs, entries)

    def stack(self, frames: memoryview, collecting: int) -> tuple[Stack, SampleFlags]:
        """Return the stack of frames that the kernel gave, the newest first.

        collecting: as in ``WalkedStack``

        Its newest frame is left out if it was being pushed.
        """
        if (
            self._tree.generation != self._generation
            or len(self._nodes) > _MOST_NODES
            or len(self._runs) > _MOST_RUNS
            or len(self._places) > _MOST_NODES
        ):
            self._start()
        node = self._root
        flags = SampleFlags.CLEAN
        for end in range(len(frames), 0, -_RUN):
            start = max(end - _RUN, 0)
            run = (node, frames[start:end].tobytes())
            known = self._runs.get(run)
            if known is None:
                self._lasts = True
                known = self._walk(node, frames[start:end].tolist(), start == 0)
                if self._lasts and not known[1] & SampleFlags.TRIMMED:
                    self._runs[run] = known
            node = known[0]
            flags |= known[1]
        if flags & SampleFlags.TRIMMED:
            collecting = 0
        return self._tree.stack(node, collecting), flags

    def _walk(
        self, node: FrameNode, words: list[int], is_newest: bool
    ) -> tuple[FrameNode, SampleFlags]:
        """Return the node of the newest of some frames upon ``node``."""
        flags = SampleFlags.CLEAN
        nodes = self._nodes
        for at in range(len(words) - _WORDS, -1, -_WORDS):
            key = (node, words[at], words[at + 1], words[at + 2], words[at + 3])
            child = nodes.get(key)
            if child is None:
                child = self._child(*key, is_newest=is_newest and at == 0)
                if child is None:
                    return node, flags | SampleFlags.TRIMMED
            if child.frame is UNRESOLVED:
                flags |= SampleFlags.UNRESOLVED
            node = child
        return node, flags

    def _child(
        self,
        node: FrameNode,
        iseq: int,
        pc: int,
        word: int,
        flags: int,
        is_newest: bool,
    ) -> FrameNode | None:
        """Make a node; None of a newest frame that is not there yet."""
        raw = (iseq, pc, word, flags)
        known = None if is_newest or node.is_leaf else self._places.get(raw)
        if known is not None:
            found = known.upon(node)
            self._nodes[node, iseq, pc, word, flags] = found
            return found
        entry, lasts = self._entry(iseq, word)
        self._lasts &= lasts
        # What may mean another entry the next time is found by the entry it means now.
        key = (node, iseq, pc, word if lasts else ~entry, flags)
        if is_newest:
            child = self._tree.child(node, iseq, pc, entry, flags, is_kept=False)
            if child is None or not child.is_sure:
                return None
            if lasts:
                self._nodes[key] = child
            return child
        if not lasts and key in self._nodes:
            return self._nodes[key]
        child = self._tree.placed(node, iseq, pc, entry, flags)
        if child is None:
            child = FrameNode(node, UNRESOLVED)
        elif lasts and child.is_ruby and child.below is node:
            self._places[raw] = child
        if lasts or child.frame is not UNRESOLVED:
            self._nodes[key] = child
        return child

    def _entry(self, iseq: int, word: int) -> tuple[int, bool]:
        """Return the method entry of a frame, from what its environment has, and
        whether the same word always means it.

        It may be an svar, which is gone with the frame, and then anything may be in
        its place: another frame's svar the next time. The last entry of the same code
        is taken then.
        """
        entry = self._tree.entry(word) if word else 0
        if not iseq:
            return entry, True
        lasts = entry in (0, word)
        if not entry or not self._tree.is_code_of(iseq, entry):
            last = self._entries.get(iseq, 0)
            return (last if last and self._tree.is_code_of(iseq, last) else 0), False
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries.clear()
        self._entries[iseq] = entry
        return entry, lasts
