"""JITFrames, in which ZJIT of Ruby 4.1 keeps the pc and iseq of the frames it runs.

While ZJIT is on, a control frame's own pc and iseq are stale unless its ``jit_return``
is 0. It is 1 for a C function. Otherwise it points into the native stack, and the word
below contains the address of the frame's JITFrame (CFP_ZJIT_FRAME of zjit.h). ZJIT
stores another address there before each call. It never frees a JITFrame, and only a
compaction changes one. Each inlined method has its own control frame and JITFrame.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress

from rbtrace_py.errors import NoSuchTarget, UnreadableMemory
from rbtrace_py.linux.memory import gathered
from rbtrace_py.model.stack_walk import WalkedStack
from rbtrace_py.rubyvm.values import Values

C_FRAME = 1
"""ZJIT_JIT_RETURN_C_FRAME, a value of ``jit_return``."""
UNKNOWN_CODE = (0, 8)
"""Pc and iseq for a missing JITFrame; 8 is not an iseq's address."""
_C_CODE = (0, 0)
_IN_JIT_FRAME = 1
"""Replaces the pc of a frame that the kernel walked: see ``WalkedStack.frames``."""
_NOT_READ = 8
"""Replaces the address of a JITFrame that the kernel could not read."""
_WORDS = 4
_MOST_KNOWN = 1 << 16
_STACK_MAP_SKIP, _STACK_MAP_TAG, _STACK_MAP_SHIFT = 0x10, 0xFF, 8
"""A number of words that a stack map skips (ZJIT_STACK_MAP_… of zjit.h)."""
_MOST_MAPPED = 1 << 12


class JitFrames:
    """Reads JITFrames by address."""

    def __init__(self, values: Values) -> None:
        self._values = values
        offsets = values.offsets
        self._pc, self._iseq = offsets.jit_frame_pc or 0, offsets.jit_frame_iseq or 0
        self._size = max(self._pc, self._iseq) + 8
        self._known: dict[int, tuple[int, int]] = {}

    def forget(self) -> None:
        """Forget all JITFrames, because a compaction may have moved code."""
        self._known.clear()

    def code(self, address: int) -> tuple[int, int]:
        """Return pc and iseq of the JITFrame at ``address``."""
        known = self._known.get(address)
        if known is None:
            try:
                known = self._parsed(self._values.memory.read(address, self._size))
            except UnreadableMemory:
                return UNKNOWN_CODE
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[address] = known
        return known

    def frame_code(
        self, jit_return: int, native: Iterable[tuple[int, bytes]]
    ) -> tuple[int, int]:
        """Return pc and iseq of a frame with that ``jit_return``, which is not 0.

        Args:
            jit_return: The frame's ``jit_return``.
            native: Parts of the native stack, as (address, bytes).
        """
        if jit_return == C_FRAME:
            return _C_CODE
        for start, data in native:
            at = jit_return - 8 - start
            if 0 <= at <= len(data) - 8:
                return self.code(int.from_bytes(data[at : at + 8], "little"))
        return UNKNOWN_CODE

    def _parsed(self, data: bytes) -> tuple[int, int]:
        pc, iseq = (
            int.from_bytes(data[at : at + 8], "little") for at in (self._pc, self._iseq)
        )
        return pc, iseq or UNKNOWN_CODE[1]

    def with_code(self, stack: WalkedStack) -> WalkedStack:
        """Return a stack with the pc and iseq of its JITFrames filled in.

        The newest frame's pc is then unknown, because ZJIT stores it only before calls.
        """
        if stack.frames is None:
            return stack
        words = array("Q", stack.frames)
        places = range(0, len(words), _WORDS)
        places_in_jit = [at for at in places if words[at + 1] == _IN_JIT_FRAME]
        if not places_in_jit:
            return stack
        self._read({words[at] for at in places_in_jit})
        for at in places_in_jit:
            pc, iseq = _C_CODE
            if words[at]:
                pc, iseq = self._known.get(words[at], UNKNOWN_CODE)
            words[at], words[at + 1] = iseq, pc if at else 0
        return stack._replace(frames=memoryview(words))

    def _read(self, addresses: Iterable[int]) -> None:
        """Read JITFrames again; keep the old contents if memory cannot be read."""
        ranges = [(one, self._size) for one in addresses if one > _NOT_READ]
        if len(self._known) + len(ranges) > _MOST_KNOWN:
            self._known.clear()
        with suppress(NoSuchTarget):  # then all stay unchanged
            found = gathered(self._values.memory, ranges)
            for (address, _), data in zip(ranges, found, strict=True):
                if data is not None:
                    self._known[address] = self._parsed(data)

    def mapped_words(self, jit_return: int, sp: int) -> Sequence[int]:
        """Return the addresses in the VM stack whose values are elsewhere.

        ZJIT keeps them in its native stack, or in its code. The JITFrame's stack map
        describes this, from the word below ``sp`` down. Raises UnreadableMemory.
        """
        values, offsets = self._values, self._values.offsets
        if offsets.jit_frame_map_size is None or offsets.jit_frame_map is None:
            return ()
        frame = values.u64(jit_return - 8)
        count = values.u32(frame + offsets.jit_frame_map_size)
        if not 0 < count <= _MOST_MAPPED:
            return ()
        entries = struct.Struct(f"={count}Q")
        data = values.memory.read(frame + offsets.jit_frame_map, entries.size)
        found = []
        for entry in entries.unpack(data):
            if entry & _STACK_MAP_TAG == _STACK_MAP_SKIP:
                sp -= 8 * (entry >> _STACK_MAP_SHIFT)
            else:
                sp -= 8
                found.append(sp)
        return found
