"""Stacks as a tree: each way from the root to a frame is stored once, as a number.

A program has far fewer distinct stacks than samples, and those share most of their
frames. What is kept of a stack here is one node for each frame that no earlier stack
went through.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rbtrace_py.model.stacks import Frame, Stack

ROOT = 0
"""The node of the stack without frames."""

MAX_NODES = 1 << 20
"""About 150 bytes each."""

_MAX_IDENTITIES = 1 << 16


class StackTree:
    """Numbers stacks and frames in the order in which they are first seen.

    frames: by number, each distinct one once
    parents, leaves: of each node but the root's, from node 1 on: the node it hangs
        from, and the number of its frame
    """

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.frames: list[Frame] = []
        self.parents = array("I")
        self.leaves = array("I")
        self._max_nodes = max_nodes
        self._children: dict[int, int] = {}
        self._numbers: dict[Frame, int] = {}
        # Frames are mostly the same objects; their texts take long to hash. The
        # object is kept beside its number, so that its id stays its own.
        self._identities: dict[int, tuple[int, Frame]] = {}

    def __len__(self) -> int:
        """The number of nodes besides the root."""
        return len(self.parents)

    def node(self, frames: Sequence[Frame]) -> int | None:
        """The number of a stack, root first; None if there is no room for it."""
        at = ROOT
        identities = self._identities
        children = self._children
        for frame in frames:
            known = identities.get(id(frame))
            number = self._number(frame) if known is None else known[0]
            if number is None:
                return None
            key = at << 32 | number
            child = children.get(key)
            if child is None:
                if len(self.parents) >= self._max_nodes:
                    return None
                child = self._grow(key)
            at = child
        return at

    def _number(self, frame: Frame) -> int | None:
        """The number of a frame; None of a new one where no node has room for it."""
        number = self._numbers.get(frame)
        if number is None:
            if len(self.parents) >= self._max_nodes:
                return None
            number = self._numbers[frame] = len(self.frames)
            self.frames.append(frame)
        if len(self._identities) >= _MAX_IDENTITIES:
            self._identities.clear()
        self._identities[id(frame)] = (number, frame)
        return number

    def _grow(self, key: int) -> int:
        self.parents.append(key >> 32)
        self.leaves.append(key & 0xFFFFFFFF)
        child = self._children[key] = len(self.parents)
        return child

    def path(self, node: int) -> list[int]:
        """Numbers of the frames of a stack, the innermost first."""
        found = []
        while node != ROOT:
            found.append(self.leaves[node - 1])
            node = self.parents[node - 1]
        return found

    def stack(self, node: int) -> Stack:
        """The stack of a number that ``node`` gave."""
        frames = self.frames
        return Stack(tuple(frames[number] for number in reversed(self.path(node))))
