"""Arguments and local variables of Ruby frames, from their environments.

Variables that a block shares with its method are shown at the method's frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.model.dump import Local
from rbtrace_py.rubyvm.frames import UNKNOWN_PC, FrameNode
from rbtrace_py.rubyvm.inspection import Inspection
from rbtrace_py.rubyvm.iseqs import Iseq
from rbtrace_py.rubyvm.jit_frames import C_FRAME, JitFrames
from rbtrace_py.rubyvm.values import Values
from rbtrace_py.rubyvm.vm import ControlFrame

MOST_LOCALS = 64
"""Maximum number of variables per frame."""
MOST_FRAMES = 256
"""Maximum frames with variables per stack, from the innermost."""
_ENVIRONMENT = 2
"""Words of an environment below its ``ep``, after the variables: the block or the outer
frame, and the method (VM_ENV_DATA_SIZE of vm_core.h is one more)."""
_HAS_BLOCK = 6
"""Bit of ``has_block`` in the flags of an iseq's parameters (vm_core.h, since 2.4)."""
_BLOCK_WAS_READ = 0x200
"""VM_FRAME_FLAG_MODIFIED_BLOCK_PARAM."""
_BLOCK = "(the block, if any)"
_UNAVAILABLE = "(unavailable: the JIT keeps it)"


class LocalsReader:
    """Reads local variables. Raises NoSuchTarget once the process is gone."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._inspection = Inspection(values)
        self._jit_frames = JitFrames(values)

    @property
    def can_read(self) -> bool:
        """True if the layout contains the offsets of local variables."""
        offsets = self._values.offsets
        return None not in (
            offsets.locals_names,
            offsets.locals_count,
            offsets.iseq_body,
        )

    def of_stack(self, frames: Sequence[ControlFrame]) -> tuple[tuple[Local, ...], ...]:
        """Return the variables of each visible frame, oldest first.

        Args:
            frames: All control frames of a stack, newest first.
        """
        if not frames or not self.can_read:
            return ()
        by_node = {id(frame.node): frame for frame in frames}
        found: list[tuple[Local, ...]] = []
        node: FrameNode | None = frames[0].node
        while node is not None:
            if node.frame is not None:
                frame = by_node.get(id(node))
                is_wanted = frame is not None and len(found) < MOST_FRAMES
                found.append(self._of_frame(frame) if is_wanted and frame else ())
            node = node.below
        return tuple(reversed(found))

    def _of_frame(self, frame: ControlFrame) -> tuple[Local, ...]:
        iseq = frame.node.iseq
        if iseq is None or iseq.is_internal:
            return ()
        try:
            pairs = self._pairs(frame)
            block = self._untouched_block(_body(iseq), frame.ep)
            elsewhere = self._elsewhere(frame)
        except UnreadableMemory:
            return ()

        def text(place: int, value: int) -> str:
            if place in elsewhere:
                return _UNAVAILABLE
            return _BLOCK if place == block else self._inspection.inspect(value)

        return tuple(
            Local(name, text(place, value))
            for place, (name, value) in enumerate(pairs)
            if name
        )

    def _elsewhere(self, frame: ControlFrame) -> range | set[int]:
        """Return which variables a JIT may keep in registers or in its native stack.

        A JIT writes variables to the VM stack before calls. All variables of the newest
        frame may therefore be missing; its pc is unknown for the same reason. A stack
        map of ZJIT tells which variables it does not write.
        """
        first, count = self._place(frame)
        if frame.node.pc == UNKNOWN_PC:
            return range(count)
        if frame.jit_return in (0, C_FRAME):
            return set()
        words = self._jit_frames.mapped_words(frame.jit_return, frame.sp)
        return {(word - first) // 8 for word in words if word < frame.ep}

    def value(self, frame: ControlFrame, name: str) -> int | None:
        """Return the value of a variable, also in a method of Ruby itself.

        None if the frame has no such variable. Raises UnreadableMemory.
        """
        if frame.node.iseq is None or not self.can_read:
            return None
        return dict(self._pairs(frame)).get(name)

    def _untouched_block(self, body: int, ep: int) -> int | None:
        """Return the index of a block parameter that is not a Proc yet, or None.

        It contains nil until the program reads it, with or without a block.
        """
        offsets, values = self._values.offsets, self._values
        if offsets.locals_params is None or offsets.locals_block is None:
            return None
        if not values.u32(body + offsets.locals_params) >> _HAS_BLOCK & 1:
            return None
        if values.u64(ep) & _BLOCK_WAS_READ:
            return None
        return values.u32(body + offsets.locals_block)

    def _pairs(self, frame: ControlFrame) -> list[tuple[str, int]]:
        """Return names and values; Ruby's own variables have an empty name."""
        offsets, values = self._values.offsets, self._values
        assert frame.node.iseq is not None
        body = _body(frame.node.iseq)
        assert offsets.locals_names is not None
        first, count = self._place(frame)
        most = min(count, MOST_LOCALS)
        if not most or count > 1 << 16:
            return []
        words = struct.Struct(f"={most}Q")
        names = values.u64(body + offsets.locals_names)
        ids = words.unpack(values.memory.read(names, words.size))
        found = words.unpack(values.memory.read(first, words.size))
        return list(zip(map(self._name, ids), found, strict=True))

    def _place(self, frame: ControlFrame) -> tuple[int, int]:
        """Return the address of a frame's first variable, and their number."""
        assert frame.node.iseq is not None
        assert self._values.offsets.locals_count is not None
        place = _body(frame.node.iseq) + self._values.offsets.locals_count
        count = self._values.u32(place)
        return frame.ep - 8 * (_ENVIRONMENT + count), count

    def _name(self, number: int) -> str:
        try:
            name = self._values.id_name(number) or ""
        except UnreadableMemory:
            return ""
        return name if name[:1].isalpha() or name[:1] == "_" else ""


def _body(iseq: Iseq) -> int:
    """Return the address of the iseq's body."""
    return int.from_bytes(iseq.fingerprint[:8], "little")
