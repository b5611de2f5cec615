"""The stack of one thread, from its control frames.

The VM stack of a thread holds values from its beginning and control frames from its
end, the newest lowest. A frame's ``ep`` points into the values, to its flags; the word
before is whose block it has or the frame it is a block of, the one before that its
method entry. The target runs on while we read. So one gather takes all of it, with
the frame pointer before and after, and whatever cannot be so is found and read again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import LARGEST_READ, Memory
from rbtrace_py.rubyvm.frames import UNKNOWN_PC, FrameNode, FrameTree
from rbtrace_py.rubyvm.layout import Layout

MOST_FRAMES = 1 << 14
LARGEST_STACK = 1 << 36
"""Bytes of a VM stack at most: RUBY_THREAD_VM_STACK_SIZE is 1 MiB if not set, but
those who recurse deeply ask for much. Never is a whole one read."""

_MARGIN_FRAMES = 6
_MARGIN_VALUES = 512
_MOST_HEAP = 32
"""Environments outside the stack that are gathered along with it."""
_MOST_BLOCKS = 512
"""How deep blocks are nested at most."""


class Track:
    """A thread's state that is kept from one sample to the next.

    ``frames`` are the raw bytes last seen, newest first; ``nodes``, ``floors`` (the
    highest ep on the stack up to there) and ``sps`` are by frame, oldest first.
    """

    __slots__ = (
        "c_words",
        "ec",
        "eps",
        "floors",
        "frames",
        "frames_at",
        "frames_end",
        "generation",
        "heap",
        "high",
        "low",
        "nodes",
        "parts",
        "ranges",
        "running",
        "sps",
        "thread",
        "unsure",
        "values_at",
        "values_size",
        "walked",
    )

    def __init__(self, thread: int, running: int) -> None:
        self.thread = thread
        self.running = running
        self.generation = 0
        self.leave()

    def leave(self) -> None:
        """Forget where its stack is."""
        self.ec = self.low = self.high = 0
        self.frames_at = self.frames_end = 0
        self.values_at = self.values_size = 0
        self.heap: tuple[int, ...] = ()
        self.ranges: list[tuple[int, int]] | None = None
        self.forget()

    @property
    def is_truncated(self) -> bool:
        """Are its oldest frames left out?"""
        return self.frames_end < self.high

    def forget(self) -> None:
        """Forget what was on its stack."""
        self.parts: list[bytes] = []
        self.walked: Any = None
        self.frames = b""
        self.nodes: list[FrameNode] = []
        self.eps: list[int] = []
        self.floors: list[int] = []
        self.unsure: list[int] = []
        self.sps: list[int] = []
        self.c_words: list[tuple[int, int, int]] = []


class Snapshot(NamedTuple):
    """One gather's result of a stack: the frame pointer before and after, the bytes
    of the frames from it on, the words of the values."""

    before: int
    after: int
    frames: bytes
    values: memoryview
    heap: dict[int, bytes]


class Reading(NamedTuple):
    """A stack as it was read once.

    ``depth`` control frames are good, of ``nodes``, which the next reading changes.
    ``unsure`` are frames that those below them should not have called, ``is_whole``
    says that nothing else is wrong. ``parts`` is what ``ranges`` gave: the collector's
    word, who runs, then what is the thread's own. ``status`` is its status byte,
    ``running`` who holds the lock (None: not known), ``flags`` the collector's word.
    """

    track: Track
    nodes: list[FrameNode]
    depth: int
    is_whole: bool
    unsure: tuple[int, ...]
    is_truncated: bool
    ec: int
    fiber: int
    status: int
    running: int | None
    flags: int
    parts: list[bytes]


class Unwinder:
    """Walks the stacks of execution contexts. Raises NoSuchTarget."""

    def __init__(self, memory: Memory, layout: Layout, tree: FrameTree) -> None:
        self._memory = memory
        self.tree = tree
        self.has_zjit = False
        offsets, traits = layout.offsets, layout.traits
        self._offsets = offsets
        self._size = offsets.cfp_size
        self._words = offsets.cfp_size // 8
        jit = offsets.cfp_jit_return
        self._jit_word = None if jit is None else min(jit // 8, self._words - 1)
        self._flags_in_ep = traits.flags_in_ep
        self._local = traits.local_flag or 2
        fiber = offsets.ec_fiber
        used = [offsets.ec_vm_stack, offsets.ec_vm_stack_size, offsets.ec_cfp]
        used += [fiber] if fiber is not None else []
        self._ec_at, self._ec_size = min(used), 8 + max(used) - min(used)
        self._stack_word = (offsets.ec_vm_stack - self._ec_at) // 8
        self._size_word = (offsets.ec_vm_stack_size - self._ec_at) // 8
        self._cfp_word = (offsets.ec_cfp - self._ec_at) // 8
        self._fiber_word = None if fiber is None else (fiber - self._ec_at) // 8
        used = (
            [offsets.th_status]
            if offsets.th_ec is None
            else [
                offsets.th_status,
                offsets.th_ec,
            ]
        )
        self._th_at, self._th_size = min(used), 8 + max(used) - min(used)
        self._status_at = offsets.th_status - self._th_at

    def ranges(
        self, track: Track, word: tuple[int, int] | None
    ) -> list[tuple[int, int]]:
        """Return the ranges to gather for ``track``, as far as they are known yet.

        The collector's word (if ``word`` has its address) and who runs come first,
        then the thread, and its stack between two looks at the frame pointer.
        """
        if track.ranges is None:
            found = [(word[0], 8)] if word else [(track.thread, 0)]
            found.append((track.running or track.thread, 8 if track.running else 0))
            found.append((track.thread + self._th_at, self._th_size))
            if track.ec:
                found += self._stack_ranges(track)
            track.ranges = found
        return track.ranges

    def _stack_ranges(self, track: Track) -> list[tuple[int, int]]:
        ec = track.ec
        found = [(ec + self._ec_at, self._ec_size)]
        if track.high:
            found.append((track.frames_at, track.frames_end - track.frames_at))
            found.append((track.values_at, track.values_size))
            found += [(ep - 16, 24) for ep in track.heap]
        found.append((ec + self._offsets.ec_cfp, 8))
        return found

    def read(self, track: Track, parts: list[bytes]) -> Reading | None:
        """Make a reading of what ``ranges`` gave, None if that was not enough.

        Then the track knows better, and it is to be gathered again. Raises
        UnreadableMemory if this is no thread.
        """
        ec = self._current_ec(track, parts[2])
        if ec != track.ec or len(parts) < 5:
            track.leave()
            track.ec = ec
            return None
        snapshot = self._snapshot(track, parts[3:])
        if snapshot is None:
            return None
        depth, is_short = self._walk(track, snapshot)
        if is_short:
            return None
        count = len(snapshot.frames) // self._size
        # None at all: of a fiber that is being switched to, or has just been made.
        is_whole = depth == count > 0 and snapshot.before == snapshot.after
        if not is_whole:
            certain = track.frames_end - max(snapshot.before, snapshot.after)
            certain = max(certain // self._size, 0)
            depth = min(depth, certain)
        words = memoryview(parts[3]).cast("Q")
        return Reading(
            track=track,
            nodes=track.nodes,
            depth=depth,
            is_whole=is_whole,
            unsure=tuple(track.unsure),
            is_truncated=track.is_truncated,
            ec=ec,
            fiber=words[self._fiber_word] if self._fiber_word is not None else 0,
            status=parts[2][self._status_at],
            running=int.from_bytes(parts[1], "little") if parts[1] else None,
            flags=int.from_bytes(parts[0], "little"),
            parts=parts,
        )

    def judge_again(self, track: Track) -> None:
        """Have the frames looked at anew that those below them should not have called.

        They, and those upon them, are made anew by the next reading.
        """
        for node in track.nodes[: track.unsure[-1]]:
            self.tree.calls.forget(node.pc)
        for index in track.unsure:
            self.tree.judge_again(track.nodes[index])
        self._drop(track, track.unsure[0])

    def _current_ec(self, track: Track, data: bytes) -> int:
        if self._offsets.th_ec is None:
            return track.thread
        at = self._offsets.th_ec - self._th_at
        ec = int.from_bytes(data[at : at + 8], "little")
        if ec < 4096 or ec & 7:
            raise UnreadableMemory("a thread without an execution context")
        return ec

    def _snapshot(self, track: Track, parts: list[bytes]) -> Snapshot | None:
        """Take the stack's bytes, None if they are not all there is."""
        words = memoryview(parts[0]).cast("Q")
        low, size = words[self._stack_word], words[self._size_word]
        before = words[self._cfp_word]
        after = int.from_bytes(parts[-1], "little")
        high = low + 8 * size
        if low != track.low or high != track.high or len(parts) < 4:
            self._move(track, low, high, before)
            return None
        if not low <= before <= high or (high - before) % self._size:
            raise UnreadableMemory("a frame pointer that is not in its stack")
        if not track.frames_at <= before <= track.frames_end:
            self._widen_frames(track, before)
            return None
        frames = parts[1][before - track.frames_at :]
        self._narrow(track, before)
        heap = dict(zip(track.heap, parts[3:-1], strict=True)) if track.heap else {}
        return Snapshot(before, after, frames, memoryview(parts[2]).cast("Q"), heap)

    def _move(self, track: Track, low: int, high: int, cfp: int) -> None:
        """Take over a stack that was not known yet."""
        size = high - low
        if not 0 < size <= LARGEST_STACK or low & 7 or low < 4096:
            raise UnreadableMemory("no VM stack")
        if not low <= cfp <= high or (high - cfp) % self._size:
            raise UnreadableMemory("a frame pointer that is not in its stack")
        track.forget()
        track.low, track.high, track.heap = low, high, ()
        track.values_at, track.values_size = low, min(_MARGIN_VALUES, size) // 8 * 8
        self._widen_frames(track, cfp)

    def _widen_frames(self, track: Track, cfp: int) -> None:
        at_least = track.low + (track.high - track.low) % self._size
        track.frames_at = max(cfp - _MARGIN_FRAMES * self._size, at_least)
        track.frames_end = min(cfp + MOST_FRAMES * self._size, track.high)
        track.ranges = None

    def _narrow(self, track: Track, cfp: int) -> None:
        """Read less from now on if much more was read than there were frames."""
        spare = cfp - track.frames_at
        if spare > 8 * _MARGIN_FRAMES * self._size + (track.high - cfp):
            self._widen_frames(track, cfp)
            track.values_at = track.low
            track.values_size = min(_MARGIN_VALUES, track.high - track.low) // 8 * 8

    def _walk(self, track: Track, snapshot: Snapshot) -> tuple[int, bool]:
        """Make the nodes of a snapshot; how many are good, and if it is worth while
        to gather again with what the track has learnt.

        What equals the last sample's is taken over: its frames' bytes, and the
        method entries of C functions, which those do not show.
        """
        tree, size, count = self.tree, self._words, len(snapshot.frames) // self._size
        if track.generation != tree.generation or track.is_truncated:
            track.forget()
            track.generation = tree.generation
        kept = self._kept(track, snapshot, count)
        if not kept == count == len(track.nodes):
            # A JIT's pc, which is the same as it was, is known below another frame
            # and unknown in the innermost.
            kept = max(min(kept, count - 1, len(track.nodes) - 1), 0)
        self._drop(track, kept)
        track.frames = snapshot.frames
        if kept == count:
            return count, False
        new = memoryview(snapshot.frames)[: (count - kept) * self._size].cast("Q")
        return self._walk_new(track, snapshot, new, size)

    @staticmethod
    def _drop(track: Track, kept: int) -> None:
        """Forget all but the oldest frames."""
        del track.nodes[kept:], track.floors[kept:], track.sps[kept:]
        del track.eps[kept:]
        while track.unsure and track.unsure[-1] >= kept:
            track.unsure.pop()
        while track.c_words and track.c_words[-1][0] >= kept:
            track.c_words.pop()

    def _kept(self, track: Track, snapshot: Snapshot, count: int) -> int:
        """Return the number of frames, from the oldest on, that are as they were."""
        old, new, size = track.frames, snapshot.frames, self._size
        most = min(len(track.nodes), count)
        # nodes may be fewer than the frames of a stack that was not understood.
        skip = 0
        while skip < most:
            part = (most - skip) * size
            if new.endswith(old[len(old) - part :]):
                break
            skip = skip * 2 + 1
        kept = max(most - skip, 0)
        values, top = snapshot.values, len(snapshot.values)
        for frame, place, word in track.c_words:
            if frame < kept and (place >= top or values[place] != word):
                return frame
        return kept

    def _walk_new(
        self, track: Track, snapshot: Snapshot, new: memoryview, words: int
    ) -> tuple[int, bool]:
        offsets = self._offsets
        pcs = new[offsets.cfp_pc // 8 :: words].tolist()
        sps = new[offsets.cfp_sp // 8 :: words].tolist()
        iseqs = new[offsets.cfp_iseq // 8 :: words].tolist()
        eps = new[offsets.cfp_ep // 8 :: words].tolist()
        nodes, floors, known = track.nodes, track.floors, self.tree.nodes
        low, start = track.low, track.values_at
        values = snapshot.values
        top = len(values)
        node = nodes[-1] if nodes else self.tree.root
        floor = floors[-1] if floors else low
        below = track.sps[-1] if track.sps else 0
        if self._is_jit_frame(new):
            pcs[0], sps[0] = UNKNOWN_PC, track.high
        local, mask, block = self._local, self.tree.magic_mask, self.tree.block_magic
        eps_known = track.eps
        for index in range(len(pcs) - 1, -1, -1):
            ep, iseq = eps[index], iseqs[index]
            if low <= ep < track.high:
                if ep <= floor or ep < below or ep >= sps[index]:
                    return len(nodes), False
                place = (ep - start) >> 3
                if not 2 <= place < top:
                    return len(nodes), self._need_values(track, ep, sps[0])
                flags, link, method = (
                    values[place],
                    values[place - 1],
                    values[place - 2],
                )
                floor = ep
            else:
                found = self._heap_words(track, snapshot, ep)
                if found is None:
                    return len(nodes), False
                method, link, flags = found
                place = -1
            if flags & local:
                method = self.tree.entry(method)
            else:
                method = self._outer_method(track, snapshot, method, link)
            key = (node, iseq, pcs[index], method, flags)
            child = known.get(key) or self.tree.child(*key)
            if child is None:
                return len(nodes), False
            if not child.is_sure or (
                flags & mask == block and not self._gives(track, link & ~3, iseq)
            ):
                track.unsure.append(len(nodes))
            if iseq == 0 and place >= 0:
                track.c_words.append((len(nodes), place - 2, values[place - 2]))
            node = child
            below = sps[index]
            nodes.append(node)
            eps_known.append(ep)
            floors.append(floor)
            track.sps.append(below)
        return len(nodes), False

    def _is_jit_frame(self, frames: memoryview) -> bool:
        """Is the innermost frame, the first, one of Ruby code that a JIT may run?

        YJIT leaves its pc as it was, and ZJIT its sp, too, without a mark.
        """
        if not frames[self._offsets.cfp_iseq // 8]:
            return False
        word = self._jit_word
        return self.has_zjit or (word is not None and frames[word] != 0)

    def _gives(self, track: Track, outer: int, block: int) -> bool:
        """Is the frame whose ep is ``outer`` in a call that gives this block?"""
        if not track.low <= outer < track.high or track.is_truncated:
            return True
        eps = track.eps
        for index in range(len(eps) - 1, -1, -1):
            if eps[index] == outer:
                return self.tree.gives_block(track.nodes[index], block)
        return False

    def _need_values(self, track: Track, ep: int, sp: int) -> bool:
        """See that the words of ``ep`` are read next time; False if they cannot be.

        Those of the oldest frame are the first. Where frames are left out, all
        values below are too.
        """
        if ep - 16 < track.low:
            return False
        if track.is_truncated and not track.nodes:
            track.values_at, track.values_size = ep - 16, 24
        elif ep - 16 < track.values_at:
            return False
        self._widen_values(track, ep, sp)
        return track.values_size <= LARGEST_READ // 2

    def _widen_values(self, track: Track, ep: int, sp: int) -> None:
        end = max(ep + 8, sp if ep <= sp < track.frames_at else 0) + _MARGIN_VALUES
        end = min(end + (end - track.values_at) // 8, track.high)
        track.values_size = (end - track.values_at) // 8 * 8
        track.ranges = None

    def _heap_words(
        self, track: Track, snapshot: Snapshot, ep: int
    ) -> tuple[int, int, int] | None:
        """Return ``ep[-2..0]`` of an environment outside the stack (a closure's)."""
        data = snapshot.heap.get(ep)
        if data is None:
            if ep < 4096 or ep & 7:
                return None
            try:
                data = self._memory.read(ep - 16, 24)
            except UnreadableMemory:
                return None
            snapshot.heap[ep] = data
            if len(track.heap) < _MOST_HEAP:
                track.heap = (*track.heap, ep)
                track.ranges = None
        words = memoryview(data).cast("Q")
        return words[0], words[1], words[2]

    def _outer_method(
        self, track: Track, snapshot: Snapshot, method: int, link: int
    ) -> int:
        """Return the method entry of the frame a block belongs to, 0 if unknown."""
        for _ in range(_MOST_BLOCKS):
            entry = self.tree.entry(method) if method else 0
            if entry:
                return entry
            ep = link & ~3
            if track.low <= ep < track.high:
                place = (ep - track.values_at) >> 3
                if not 2 <= place < len(snapshot.values):
                    return 0
                values = snapshot.values
                method, link, flags = (
                    values[place - 2],
                    values[place - 1],
                    values[place],
                )
            else:
                found = self._heap_words(track, snapshot, ep)
                if found is None:
                    return 0
                method, link, flags = found
            if flags & self._local:
                return self.tree.entry(method)
        return 0
