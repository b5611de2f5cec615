"""Stacks of Rubies up to 2.3, whose control frames contain their type.

Up to 2.2 they also contain their method entry (2.3: ``ep[-1]``). A block has
the method of the frame to which its environment belongs. ``ep[0]`` is the given block
or the outer environment, depending on its second bit.
"""

from __future__ import annotations

from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.frames import FrameTree
from rbtrace_py.rubyvm.layout import Layout
from rbtrace_py.rubyvm.unwinder import Snapshot, Track, Unwinder

_MOST_BLOCKS = 64


class OldUnwinder(Unwinder):
    """An Unwinder for Rubies whose frames have other fields."""

    def __init__(self, memory: Memory, layout: Layout, tree: FrameTree) -> None:
        super().__init__(memory, layout, tree)
        magics = layout.traits.frame_magics
        # The oldest frame of a thread does not belong to the program; up to 2.2 it is
        # of type TOP, like the file of a `require`.
        self._hidden = magics["DUMMY"] if "DUMMY" in magics else magics["IFUNC"]
        self._method_back = 8

    def _walk_new(self, track: Track, snapshot: Snapshot, new: memoryview) -> bool:
        offsets, words = self._offsets, self._words
        assert offsets.cfp_flag is not None
        pcs, sps, iseqs, eps, types = (
            new[offset // 8 :: words].tolist()
            for offset in (
                offsets.cfp_pc,
                offsets.cfp_sp,
                offsets.cfp_iseq,
                offsets.cfp_ep,
                offsets.cfp_flag,
            )
        )
        methods = self._methods_by_ep(snapshot, words)
        nodes = track.nodes
        for index in range(len(pcs) - 1, -1, -1):
            ep = eps[index]
            # The first frame of a fiber may have its environment in the first word.
            floor = track.floors[-1] if track.floors else track.low - 8
            if track.low <= ep < track.high:
                below = track.sps[-1] if track.sps else 0
                if ep <= floor or ep < below or ep >= sps[index]:
                    return False
                if (ep - track.values_at) >> 3 >= len(snapshot.values):
                    self._widen_values(track, ep, sps[0])
                    return True
                floor = ep
            kind = types[index] if nodes else self._hidden
            method = self._method(track, snapshot, methods, ep)
            node = nodes[-1] if nodes else self.tree.root
            key = (node, iseqs[index], pcs[index], method, kind & 0xFFFFFFFF)
            child = self.tree.nodes.get(key) or self.tree.child(*key)
            if child is None:
                return False
            nodes.append(child)
            track.eps.append(ep)
            track.floors.append(floor)
            track.sps.append(sps[index])
        return False

    def _methods_by_ep(self, snapshot: Snapshot, words: int) -> dict[int, int]:
        """Return the method entries in frames, by ep; {} since 2.3."""
        if self._method_at is None:
            return {}
        frames = memoryview(snapshot.frames).cast("Q")
        eps = frames[self._offsets.cfp_ep // 8 :: words].tolist()
        methods = frames[self._method_at // 8 :: words].tolist()
        return {ep: method for ep, method in zip(eps, methods, strict=True) if method}

    def _method(
        self, track: Track, snapshot: Snapshot, methods: dict[int, int], ep: int
    ) -> int:
        """Return the method entry of a frame, or of the frame whose block it is."""
        for _ in range(_MOST_BLOCKS):
            if ep in methods:
                return methods[ep]
            if track.low <= ep < track.high:
                place = (ep - track.values_at) >> 3
                if not 1 <= place < len(snapshot.values):
                    return 0
                inner, link = snapshot.values[place - 1], snapshot.values[place]
            else:
                found = self._heap_words(track, snapshot, ep)
                if found is None:
                    return 0
                _, inner, link = found
            if self._method_at is None and self.tree.entry(inner):
                return inner
            if link & self._local or link & ~3 == ep:
                return 0
            ep = link & ~3
        return 0
