"""Code that was first read after a sample, and may have come to its place after it.

The kernel says with a stack how many collections had begun. Code is freed and moved by
collections alone: what was read during the same one was there as the stack was walked.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rbtrace_py.model.stack_walk import WalkedStack
from rbtrace_py.rubyvm.frames import FrameTree

GONE = 1
"""In place of the iseq of a frame that is not to be named."""
_WORDS = 4
_TWO_COLLECTIONS = 4
_MOST_KNOWN = 1 << 16
_MARKING = 1
"""Of what ``_order`` returns, before it is turned round."""


class LateCode:
    """Knows since which collection each code is known."""

    def __init__(self, tree: FrameTree) -> None:
        self._tree = tree
        self._since: dict[int, int] = {}
        self._latest = 0

    def without(
        self, stacks: Sequence[WalkedStack], collection: int
    ) -> list[WalkedStack]:
        """Return those stacks that have code that may be later than they are, without
        the names of it. To name them may read other code that is.

        stacks: just named
        collection: the VM's now; what was read for them was read before
        """
        now = _order(collection)
        if len(self._since) > _MOST_KNOWN:
            self._since.clear()
        for address, is_old in self._tree.take_fresh():
            # What has lived through three collections was there two before this one.
            since = now - _TWO_COLLECTIONS * is_old
            self._since[address] = since
            self._latest = max(self._latest, since)
        found = [self._without(stack) for stack in stacks]
        return [stack for stack in found if stack is not None]

    def _without(self, stack: WalkedStack) -> WalkedStack | None:
        order, since = _order(stack.collection), self._since.get
        if order >= self._latest or stack.frames is None:
            return None
        words = array("Q", stack.frames)
        is_late = False
        for at in range(0, len(words), _WORDS):
            if since(words[at] or words[at + 2], 0) > order:
                words[at] = GONE
                is_late = True
        return stack._replace(frames=memoryview(words)) if is_late else None


def _order(collection: int) -> int:
    """Return a number that grows with each collection, and as its marking ends.

    What is seen while one marks may be freed by it: it is not marked any more.
    """
    return collection >> 1 ^ _MARKING
