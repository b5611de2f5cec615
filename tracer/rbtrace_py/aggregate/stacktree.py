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
"""12 bytes each, and 100 more of those that are not the first above their parent."""

_MAX_IDENTITIES = 1 << 14


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
        # Of each node, the root's too: the first node above it, 0 if there is none.
        # Most stacks are new from some frame on, and there nothing branches off.
        self._firsts = array("I", [0])
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
        """The node of a frame that is not the first above ``at``; None: no room."""
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
