"""Code first read after a sample, which may be newer than the sample.

The kernel reports with each stack the number of collections begun. Only collections
free and move code. Code read before the next collection was therefore there when the
stack was walked.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from rbtrace_py.model.stack_walk import WalkedStack

NOT_NAMED = 1
"""Replaces the iseq of a frame that must not be named."""
_WORDS = 4
_MOST_KNOWN = 1 << 16
_COLLECTING, _MARKING = 1, 2
"""Bits of ``RubyVM.collection``, below the number of collections."""


class LateCode:
    """Records when each code was first known, in half collections (see ``_half``)."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._others = self._latest = 0

    def without(
        self,
        stacks: Sequence[WalkedStack],
        fresh: Iterable[tuple[int, bool]],
        collection: int,
    ) -> list[WalkedStack]:
        """Return the stacks with frames whose code may be newer than the stack.

        These frames become ``NOT_NAMED``. The stacks must then be named again, until no
        stack is returned, because naming them may read other code.

        Args:
            stacks: Stacks that were just named.
            fresh: Addresses of code read since the last call, and whether it survived a
                collection.
            collection: ``RubyVM.collection``, read afterwards.
        """
        now = _half(collection)
        if len(self._since) > _MOST_KNOWN:
            self._since.clear()
            self._others = self._latest = now
        for address, is_old in fresh:
            # It existed when the last collection freed code that did not survive.
            since = (now - 2) | 1 if is_old else now
            self._since[address] = since
            self._latest = max(self._latest, since)
        found = [self._without(stack) for stack in stacks]
        return [stack for stack in found if stack is not None]

    def _without(self, stack: WalkedStack) -> WalkedStack | None:
        half = _half(stack.collection)
        if stack.collection & _COLLECTING:
            half &= ~1  # it may be about to move code
        if half >= self._latest or stack.frames is None:
            return None
        words = array("Q", stack.frames)
        is_late = False
        for at in range(0, len(words), _WORDS):
            since = self._since.get(words[at] or words[at + 2], self._others)
            if since > half and words[at] != NOT_NAMED:
                words[at] = NOT_NAMED
                is_late = True
        return stack._replace(frames=memoryview(words)) if is_late else None


def _half(collection: int) -> int:
    """Return 2 N while the Nth collection marks, and 2 N + 1 afterwards.

    Code first seen in 2 N may be freed by that collection, if it is not marked any
    more.
    """
    return 2 * (collection >> 2) + (not collection & _MARKING)
