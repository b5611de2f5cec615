"""Stacks as a tree: each path from the root to a frame is stored once, as a number.

A program has far fewer distinct stacks than samples, and distinct stacks share most of
their frames. A stack adds one node for each frame where its path is new.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rbtrace_py.model.stacks import Frame, Stack

ROOT = 0
"""The node of the stack without frames."""

MAX_NODES = 1 << 20
"""Default limit. A node takes 12 bytes, and 100 more unless it is a first child."""

_MAX_IDENTITIES = 1 << 14


class StackTree:
    """Numbers stacks and frames in the order in which they are first seen.

    Attributes:
        frames: The distinct frames by number.
        parents: Parent node of each node from node 1; the root has none.
        leaves: Frame number of each node from node 1.
    """

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.frames: list[Frame] = []
        self.parents = array("I")
        self.leaves = array("I")
        # The first child of each node, including the root; 0 without children. Most
        # new nodes are on a path without branches.
        self._firsts = array("I", [0])
        self._max_nodes = max_nodes
        self._children: dict[int, int] = {}
        self._numbers: dict[Frame, int] = {}
        # Equal frames are mostly the same object, and their strings take long to hash.
        # A reference to the frame keeps its id from being reused.
        self._identities: dict[int, tuple[int, Frame]] = {}

    def __len__(self) -> int:
        """Return the number of nodes without the root."""
        return len(self.parents)

    def node(self, frames: Sequence[Frame]) -> int | None:
        """Return the node of a stack, root first; None if the tree is full."""
        at = ROOT
        identities = self._identities
        firsts, leaves = self._firsts, self.leaves
        for frame in frames:
            known = identities.get(id(frame))
            number = self._number(frame) if known is None else known[0]
            if number is None:
                return None
            child = firsts[at]
            if not child or leaves[child - 1] != number:
                found = self._other_child(at, number)
                if found is None:
                    return None
                child = found
            at = child
        return at

    def _other_child(self, at: int, number: int) -> int | None:
        """Find a child after the first, or add a child; None if the tree is full."""
        key = at << 32 | number
        child = self._children.get(key)
        if child is not None or len(self.parents) >= self._max_nodes:
            return child
        self.parents.append(at)
        self.leaves.append(number)
        self._firsts.append(0)
        child = len(self.parents)
        if self._firsts[at]:
            self._children[key] = child
        else:
            self._firsts[at] = child
        return child

    def _number(self, frame: Frame) -> int | None:
        """Return the number of a frame; None for a new frame if the tree is full."""
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

    def path(self, node: int) -> list[int]:
        """Return the frame numbers of a stack, innermost first."""
        found = []
        while node != ROOT:
            found.append(self.leaves[node - 1])
            node = self.parents[node - 1]
        return found

    def stack(self, node: int) -> Stack:
        """Return the stack of a node."""
        frames = self.frames
        return Stack(tuple(frames[number] for number in reversed(self.path(node))))
