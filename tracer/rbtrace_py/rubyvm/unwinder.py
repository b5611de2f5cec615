"""The stack of one thread, from its control frames.

The VM stack of a thread holds values from its beginning and control frames from its
end, with the newest frame at the lowest address. A frame's ``ep`` points into the
values, to the frame's flags. The word before is the block handler, or the ``ep`` of the
frame around a block. The word before that is the method entry.

The target runs while it is read, and no reading is repeated, because long-lived stacks
would be overrepresented. The sampled moment is the first read of the frame pointer. The
same gather reads the newest frames and values several times around it (probes). Frames
that differ between probes are unknown, and so are all frames on top of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import LARGEST_READ, Memory
from rbtrace_py.rubyvm.frames import UNKNOWN_PC, FrameNode, FrameTree
from rbtrace_py.rubyvm.iseqs import Iseq
from rbtrace_py.rubyvm.jit_frames import C_FRAME, JitFrames
from rbtrace_py.rubyvm.layout import Layout

MOST_FRAMES = 1 << 14
LARGEST_STACK = 1 << 36
"""Maximum bytes of a VM stack: RUBY_THREAD_VM_STACK_SIZE is 1 MiB by default, but
deeply recursive programs set more. A whole VM stack is never read."""

_PAGE = 4096
_MARGIN_FRAMES = 6
_MARGIN_VALUES = 512
_MOST_HEAP = 32
"""Maximum environments outside the stack that are gathered with it."""
_MOST_BLOCKS = 512
"""Maximum nesting of blocks."""
_PROBES = "efvpfvffff"
"""The order of a gather's probes: the (e)xecution context, newest (f)rames, newest
(v)alues, and the frame (p)ointer. The frame pointer of (e) defines the sampled moment.
A probe before (e) would slow the next calls down, and so would shift that moment.
"""
_PROBE_SIZE = 2048
"""Bytes of a probe; a larger one would need another page."""
_HEAD = 3
"""Parts of a gather before the probes: collector's word, running thread, thread."""
_REST = _HEAD + len(_PROBES)
"""The first part after the probes: all frames."""
_EC = _HEAD
_POINTER = _HEAD + _PROBES.index("p")
_FRAMES, _VALUES = (
    tuple(_HEAD + at for at, kind in enumerate(_PROBES) if kind == wanted)
    for wanted in "fv"
)


class _Order:
    """The order of a gather's probes, also with frames of ZJIT (4.1).

    In addition to ``_PROBES``, it contains the word that tells whether (z)JIT is on, or
    after each probe of frames the (n)ative stack with their JITFrames. After all frames
    follows the rest of the native stack.
    """

    def __init__(self, probes: str) -> None:
        self.probes = probes
        places = {
            kind: tuple(_HEAD + at for at, one in enumerate(probes) if one == kind)
            for kind in "fvpzn"
        }
        self.rest = _HEAD + len(probes)
        self.frames, self.natives, self.switch = (places[kind] for kind in "fnz")
        more = (self.rest + 1,) if self.natives else ()
        self.equal = (self.frames, places["v"], self.natives)
        self.pointer = places["p"][0]
        self.dropped = frozenset((*self.natives, *self.switch, *more))


_PLAIN = _Order(_PROBES)
_BEFORE_ZJIT = _Order(f"{_PROBES}z")
_WITH_ZJIT = _Order(_PROBES.replace("f", "fn"))
_NATIVE_PROBE_SIZE = 1 << 15
"""Maximum bytes of the native stack in a probe."""
_MOST_NATIVE = 1 << 24
"""Maximum bytes read of the native stack, which has 1 to 8 MiB per thread unless
RUBY_THREAD_MACHINE_STACK_SIZE sets more."""
_MOST_CHANGES = 1
"""Changes of a frame between probes that a slow method causes. After more changes, the
frame of the sampled moment is unknown."""


Doubt = tuple[FrameNode | None, Iseq | FrameNode]
"""A frame, and the code of a doubtful frame that it should not have called."""


class Track:
    """A thread's state that is kept between samples.

    Attributes:
        frames: Raw bytes last seen, newest first.
        nodes, floors, sps: By frame, oldest first. A floor is the highest ep on the
            stack up to that frame.
        probe_at, probe_end: Bounds of the frames in probes.
        words_at, words_end: Bounds of the values in probes.
        depth: Number of frames in the last sample, including hidden ones.
        doubts: For each doubtful frame of the last samples, the newest frames above it.
        is_placed: True if the places of the probes come from a reading.
        gathered: Ranges of the last gather.
        counted: Ranges whose bytes were counted last.
        near, native: Bounds of the native stack in probes, and in the rest.
    """

    __slots__ = (
        "c_words",
        "counted",
        "depth",
        "doubts",
        "ec",
        "eps",
        "floors",
        "frames",
        "frames_at",
        "frames_end",
        "gathered",
        "generation",
        "has_newest",
        "heap",
        "high",
        "is_placed",
        "low",
        "native",
        "near",
        "nodes",
        "order",
        "parts",
        "probe_at",
        "probe_end",
        "ranges",
        "running",
        "sps",
        "thread",
        "unsure",
        "values_at",
        "values_size",
        "walked",
        "words_at",
        "words_end",
    )

    def __init__(self, thread: int, running: int) -> None:
        self.thread = thread
        self.gathered: list[tuple[int, int]] = []
        self.counted = self.gathered
        self.running = running
        self.generation = 0
        self.leave()

    def leave(self) -> None:
        """Forget where its stack is."""
        self.ec = self.low = self.high = 0
        self.frames_at = self.frames_end = 0
        self.values_at = self.values_size = 0
        self.is_placed = False
        self.doubts: dict[Doubt, set[FrameNode]] = {}
        self.probe_at = self.probe_end = self.words_at = self.words_end = 0
        self.heap: tuple[int, ...] = ()
        self.near = self.native = (0, 0)
        self.order = _PLAIN
        self.ranges: list[tuple[int, int]] | None = None
        self.forget()

    @property
    def is_truncated(self) -> bool:
        """True if its oldest frames are omitted."""
        return self.frames_end < self.high

    def forget(self) -> None:
        """Forget the contents of its stack."""
        self.parts: list[bytes] = []
        self.walked: Any = None
        self.frames = b""
        self.depth = 0
        self.has_newest = False
        self.nodes: list[FrameNode] = []
        self.eps: list[int] = []
        self.floors: list[int] = []
        self.unsure: list[int] = []
        self.sps: list[int] = []
        self.c_words: list[tuple[int, int, int]] = []


class Snapshot(NamedTuple):
    """One gather's result for a stack.

    Attributes:
        frames: Bytes of the control frames at the sampled moment, newest first.
        proven: Number of oldest frames that certainly existed at the sampled moment.
        values: Words of the values.
        heap: ``ep[-2..0]`` of environments outside the stack, by their ep.
    """

    frames: bytes
    proven: int
    values: memoryview
    heap: dict[int, bytes]


class Reading(NamedTuple):
    """A stack as it was read once.

    Attributes:
        nodes: The proven and valid frames. The next reading changes this list.
        is_whole: True if no frame is invalid, except for ``unsure`` ones.
        unsure: Frames that the frame below should not have called.
        status: The thread's status byte.
        running: The holder of the GVL (None: unknown).
        flags: The collector's word.
        parts: Bytes of the gathered ranges: the collector's word, the running thread,
            then the thread's own data.
    """

    track: Track
    nodes: list[FrameNode]
    snapshot: Snapshot
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
        self._zjit = 0
        self._order = _PLAIN
        self._jit_frames = JitFrames(tree.values)
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
        # The fields that are constant while a frame exists. A call changes pc and sp.
        used = [offsets.cfp_iseq, offsets.cfp_self, offsets.cfp_ep]
        self._same_at, self._same_end = min(used), 8 + max(used)
        self._iseq_in_state = offsets.cfp_iseq - self._same_at
        self._method_at = offsets.cfp_me
        self._method_back = 16
        self._methods_of: dict[int, tuple[int, int]] = {}
        used = [offsets.th_status]
        used += [] if offsets.th_ec is None else [offsets.th_ec]
        self._th_at, self._th_size = min(used), 8 + max(used) - min(used)
        self._status_at = offsets.th_status - self._th_at

    def watch_zjit(self, address: int) -> None:
        """Read frames of ZJIT once the word at ``address`` (0: none) is not 0."""
        if address:
            self._zjit, self._order = address, _BEFORE_ZJIT

    @property
    def has_jit_frames(self) -> bool:
        """True if pc and iseq of frames are in JITFrames, because ZJIT is on."""
        return self._order is _WITH_ZJIT

    def forget_code(self) -> None:
        """Forget JITFrames, because code may have been moved."""
        self._jit_frames.forget()

    def ranges(
        self, track: Track, word: tuple[int, int] | None
    ) -> list[tuple[int, int]]:
        """Return the ranges to gather for ``track``, as far as they are known.

        The collector's word (if ``word`` contains its address) and the running thread
        come first, then the thread, and its stack in the order of ``_PROBES``.
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
        ec = (track.ec + self._ec_at, self._ec_size)
        if not track.high:
            return [ec]
        pointer = (track.ec + self._offsets.ec_cfp, 8)
        probes = {
            "p": pointer,
            "e": ec,
            "f": (track.probe_at, track.probe_end - track.probe_at),
            "v": (track.words_at, track.words_end - track.words_at),
            "z": (self._zjit, 8),
            "n": (track.near[0] or track.thread, track.near[1] - track.near[0]),
        }
        track.order = self._order
        found = [probes[kind] for kind in track.order.probes]
        found.append((track.frames_at, track.frames_end - track.frames_at))
        if track.order.natives:
            start, end = track.native
            found.append((start or track.thread, end - start))
        found.append((track.values_at, track.values_size))
        found += [(ep - 16, 24) for ep in track.heap]
        found.append(pointer)
        return found

    def read(self, track: Track, parts: list[bytes]) -> Reading | None:
        """Make a reading from the bytes of ``ranges``; None if they were insufficient.

        In that case the track is updated, and must be gathered again. Raises
        UnreadableMemory if this is not a thread.
        """
        ec = self._current_ec(track, parts[2])
        if ec != track.ec or len(parts) <= _HEAD:
            track.leave()
            track.ec = ec
            return None
        context = memoryview(parts[_EC]).cast("Q")
        if not self._has_all(track, context):
            return None
        raw, found = parts, self._plain_parts(track, context, parts)
        if found is None:
            return None
        snapshot = self._snapshot(track, context[self._cfp_word], found)
        is_short = self._walk(track, snapshot)
        if is_short:
            return None
        cfp = context[self._cfp_word]
        self._narrow(track, cfp)
        self._place_probes(track, cfp)
        self._place_words(track)
        if not track.is_placed:
            track.is_placed = True
            if track.ranges is None:
                return None
        # A fiber has no frames when it was just created, or as a switch to it begins.
        count = len(snapshot.frames) // self._size
        return Reading(
            track=track,
            nodes=track.nodes,
            snapshot=snapshot,
            is_whole=len(track.nodes) == count > 0,
            unsure=tuple(track.unsure),
            is_truncated=track.is_truncated,
            ec=ec,
            fiber=context[self._fiber_word] if self._fiber_word is not None else 0,
            status=parts[2][self._status_at],
            running=int.from_bytes(parts[1], "little") if parts[1] else None,
            flags=int.from_bytes(parts[0], "little"),
            parts=raw,
        )

    def recheck(self, reading: Reading) -> Reading:
        """Check doubtful frames again, with the current code and call caches.

        The nodes of doubtful frames, and of all frames on top of them, are made again.
        """
        track, snapshot = reading.track, reading.snapshot
        for node in track.nodes[: track.unsure[-1]]:
            self.tree.calls.forget(node.pc)
        for index in track.unsure:
            self.tree.recheck(track.nodes[index])
        self._drop(track, track.unsure[0])
        return self._walk_again(reading, snapshot)

    def is_unchanged(self, reading: Reading) -> bool:
        """Return whether all probes are equal, as in a paused thread."""
        parts, order = reading.parts, reading.track.order
        same = (*order.equal, (order.pointer, len(parts) - 1))
        return all(len({parts[at] for at in some}) <= 1 for some in same)

    def with_all_proven(self, reading: Reading) -> Reading:
        """Return the reading of a thread that did not change: all frames are proven."""
        count = len(reading.snapshot.frames) // self._size
        return self._walk_again(reading, reading.snapshot._replace(proven=count))

    def _walk_again(self, reading: Reading, snapshot: Snapshot) -> Reading:
        track = reading.track
        self._walk(track, snapshot)
        is_whole = len(track.nodes) == len(snapshot.frames) // self._size > 0
        # The list is a new one if the track forgot its stack, which is truncated.
        return reading._replace(
            nodes=track.nodes, is_whole=is_whole, unsure=tuple(track.unsure)
        )

    def _plain_parts(
        self, track: Track, context: memoryview, parts: list[bytes]
    ) -> list[bytes] | None:
        """Return a gather's parts as without ZJIT: frames contain their pc and iseq.

        None if the ranges were too small, or have changed.
        """
        order = track.order
        if order is _PLAIN:
            return parts
        if order.switch and any(parts[order.switch[0]]):
            self._order = _WITH_ZJIT
        if order is not self._order:
            track.ranges = None
            return None
        if order.natives:
            if not self._place_natives(track, context[self._cfp_word], parts):
                return None
            rest = (track.native[0], parts[order.rest + 1])
            parts = list(parts)
            for at, native in zip(order.frames, order.natives, strict=True):
                near = (track.near[0], parts[native])
                parts[at] = self._with_code(parts[at], (near, rest))
            parts[order.rest] = self._with_code(parts[order.rest], (rest,))
        return [part for at, part in enumerate(parts) if at not in order.dropped]

    def _place_natives(self, track: Track, cfp: int, parts: list[bytes]) -> bool:
        """Return whether the JITFrames of the current frames were read. If not, place
        the next reading of the native stack."""
        newest = parts[track.order.frames[0]]
        is_probed = track.probe_at <= cfp < track.probe_end
        near = self._slots(newest[cfp - track.probe_at :]) if is_probed else []
        after = max(cfp, track.probe_end if is_probed else 0) - track.frames_at
        slots = near + self._slots(parts[track.order.rest][max(after, 0) :])
        bounds = (
            _covering(track.near, near, _NATIVE_PROBE_SIZE),
            _covering(track.native, slots, _MOST_NATIVE),
        )
        if bounds == (track.near, track.native):
            return True
        track.near, track.native = bounds
        track.ranges = None
        return False

    def _slots(self, frames: bytes) -> list[int]:
        """Return the addresses of the words that refer to these frames' JITFrames."""
        assert self._jit_word is not None
        words = memoryview(frames).cast("Q")[self._jit_word :: self._words].tolist()
        return [word - 8 for word in words if word > C_FRAME]

    def _with_code(self, frames: bytes, native: Sequence[tuple[int, bytes]]) -> bytes:
        """Return frames with the pc and iseq of their JITFrames."""
        assert self._jit_word is not None
        words = array("Q", frames)
        pc, iseq = self._offsets.cfp_pc // 8, self._offsets.cfp_iseq // 8
        jits = words[self._jit_word :: self._words]
        for number, jit_return in enumerate(jits):
            if jit_return:
                at = number * self._words
                code = self._jit_frames.frame_code(jit_return, native)
                words[at + pc], words[at + iseq] = code
        return words.tobytes()

    def _current_ec(self, track: Track, data: bytes) -> int:
        if self._offsets.th_ec is None:
            return track.thread
        at = self._offsets.th_ec - self._th_at
        ec = int.from_bytes(data[at : at + 8], "little")
        if ec < 4096 or ec & 7:
            raise UnreadableMemory("a thread without an execution context")
        return ec

    def _has_all(self, track: Track, context: memoryview) -> bool:
        """Return whether the gathered ranges contain all frames of the stack.

        If not, the next ranges will. Raises UnreadableMemory for a frame pointer
        outside its stack.
        """
        low, size = context[self._stack_word], context[self._size_word]
        cfp = context[self._cfp_word]
        high = low + 8 * size
        if not track.high or low != track.low or high != track.high:
            self._move(track, low, high, cfp)
            return False
        if not low <= cfp <= high or (high - cfp) % self._size:
            raise UnreadableMemory("a frame pointer outside its stack")
        if not track.frames_at <= cfp <= track.frames_end:
            self._widen_frames(track, cfp)
            return False
        return True

    def _snapshot(self, track: Track, cfp: int, parts: list[bytes]) -> Snapshot:
        """Extract the stack's bytes from a complete gather.

        Args:
            track: The thread's track.
            cfp: Frame pointer of the sampled moment.
            parts: Parts of the gather.
        """
        proven = self._proven(track, cfp, parts)
        frames, values, *heap = parts[_REST:-1]
        if track.probe_at <= cfp < track.probe_end:
            newest = parts[_FRAMES[0]][cfp - track.probe_at :]
            frames = newest + frames[track.probe_end - track.frames_at :]
        else:
            frames = frames[cfp - track.frames_at :]
        start, end = track.words_at - track.values_at, track.words_end - track.values_at
        newest = parts[_VALUES[0]]
        words = memoryview(values[:start] + newest + values[end:]).cast("Q")
        return Snapshot(frames, proven, words, dict(zip(track.heap, heap, strict=True)))

    def _proven(self, track: Track, cfp: int, parts: list[bytes]) -> int:
        """Return the number of oldest frames that existed at the sampled moment.

        Args:
            track: The thread's track.
            cfp: Frame pointer of the sampled moment.
            parts: Parts of the gather.
        """
        size, start, end = self._size, track.probe_at, track.probe_end
        count = (track.frames_end - cfp) // size
        highest = max(cfp, int.from_bytes(parts[-1], "little"))
        unpopped = max(track.frames_end - highest, 0) // size
        if not start <= cfp < end:
            return min(unpopped, max(count - 1, 0))
        rest = parts[_REST][start - track.frames_at : end - track.frames_at]
        probes = [parts[at][cfp - start :] for at in _FRAMES]
        probes.append(rest[cfp - start :])
        proven = unpopped if highest > end else count
        for at in range(self._changed(probes) - 1, -1, -1):
            if not self._is_known(track, cfp, parts, probes, at * size):
                return min(count - 1 - at, proven)
        return proven

    def _changed(self, probes: list[bytes]) -> int:
        """Return how many of the newest frames may differ between probes; at least 1.

        The newest is always included: a C function's frame does not show its method.
        """
        first, size = probes[0], self._size
        most, changed = len(first) // size, 1
        while changed < most:
            same = first[changed * size :]
            if all(probe.endswith(same) for probe in probes):
                break
            changed = 2 * changed + 1
        return min(changed, most)

    def _is_known(
        self,
        track: Track,
        cfp: int,
        parts: list[bytes],
        probes: list[bytes],
        at: int,
    ) -> bool:
        """Return whether the frame at offset ``at`` of the probes is known.

        A frame that lasts is still on the stack at its second probe. Otherwise it may
        have changed once: a call that is shorter than the time between probes changes
        more often.
        """
        start, end = at + self._same_at, at + self._same_end
        states = [probe[start:end] for probe in probes]
        now, methods = states[0], []
        if not any(now[self._iseq_in_state : self._iseq_in_state + 8]):
            methods = self._methods(track, parts, probes, at)
            if not methods:
                return False
            start = at + self._size + self._offsets.cfp_pc
            for index, probe in enumerate(probes):  # compare the call site, too
                states[index] += probe[start : start + 8]
            now = states[0]
        pointer = int.from_bytes(parts[_POINTER], "little")
        if pointer <= cfp + at and states[1] == now and methods[:1] == methods[1:]:
            return True
        return _changes(states) <= _MOST_CHANGES

    def _methods(
        self, track: Track, parts: list[bytes], probes: list[bytes], at: int
    ) -> list[bytes]:
        """Return the method entry of a C function's frame in each probe.

        [] if the probes' ranges do not contain the entry.
        """
        if self._method_at is not None:
            start = at + self._method_at
            return [probe[start : start + 8] for probe in probes[:2]]
        start = at + self._offsets.cfp_ep
        place = int.from_bytes(probes[0][start : start + 8], "little")
        place -= self._method_back
        if not track.words_at <= place < track.words_end:
            return []
        place -= track.words_at
        return [parts[one][place : place + 8] for one in _VALUES]

    def _move(self, track: Track, low: int, high: int, cfp: int) -> None:
        """Set the bounds of a stack that was not known yet."""
        size = high - low
        if not 0 < size <= LARGEST_STACK or low & 7 or low < 4096:
            raise UnreadableMemory("no VM stack")
        if not low <= cfp <= high or (high - cfp) % self._size:
            raise UnreadableMemory("a frame pointer outside its stack")
        track.forget()
        track.low, track.high, track.heap = low, high, ()
        track.values_at, track.values_size = low, min(_MARGIN_VALUES, size) // 8 * 8
        self._widen_frames(track, cfp)
        track.words_end = 0
        self._place_words(track)

    def _widen_frames(self, track: Track, cfp: int) -> None:
        at_least = track.low + (track.high - track.low) % self._size
        track.frames_at = max(cfp - _MARGIN_FRAMES * self._size, at_least)
        track.frames_end = min(cfp + MOST_FRAMES * self._size, track.high)
        track.probe_end = 0
        self._place_probes(track, cfp)
        track.ranges = None

    def _place_probes(self, track: Track, cfp: int) -> None:
        """Move the next probes to the frames around ``cfp``."""
        if track.probe_at <= cfp < track.probe_end - _MARGIN_FRAMES * self._size or (
            track.probe_end == track.frames_end and track.probe_at <= cfp
        ):
            return
        most = _PROBE_SIZE // self._size * self._size
        start = cfp - most // self._size // 3 * self._size
        end = min(max(start, track.frames_at) + most, track.frames_end)
        track.probe_at, track.probe_end = max(end - most, track.frames_at), end
        track.ranges = None

    def _place_words(self, track: Track) -> None:
        """Move the next probes to the values around the newest frame's ``ep``."""
        at = track.floors[-1] if track.floors else track.values_at
        if track.words_at <= at - 16 and at + 8 <= track.words_end:
            return
        values_end = track.values_at + track.values_size
        end = min(max(at - _PROBE_SIZE // 2, track.values_at) + _PROBE_SIZE, values_end)
        start = max(end - _PROBE_SIZE, track.values_at)
        if (start, end) != (track.words_at, track.words_end):
            track.words_at, track.words_end = start, end
            track.ranges = None

    def _narrow(self, track: Track, cfp: int) -> None:
        """Read less in the future if much more was read than the frames needed."""
        spare = cfp - track.frames_at
        if spare > 8 * _MARGIN_FRAMES * self._size + (track.high - cfp):
            self._widen_frames(track, cfp)
            track.values_at = track.low
            track.values_size = min(_MARGIN_VALUES, track.high - track.low) // 8 * 8
            track.words_end = 0

    def _walk(self, track: Track, snapshot: Snapshot) -> bool:
        """Make the nodes of a snapshot's proven frames.

        Nodes of the last sample are kept if the bytes of their frames, and the method
        entries of their C functions, are equal.

        Returns:
            True if the ranges were too small, so that another gather is needed.
        """
        tree, size, proven = self.tree, self._size, snapshot.proven
        if track.generation != tree.generation or track.is_truncated:
            if track.generation != tree.generation:
                self._methods_of.clear()
            track.forget()
            track.generation = tree.generation
        frames = snapshot.frames
        is_all = proven * size == len(frames)
        if not is_all:
            frames = frames[len(frames) - proven * size :]
        kept = self._kept(track, frames, snapshot.values)
        if not kept == proven == len(track.nodes) or is_all != track.has_newest:
            # An unchanged pc of a JIT is known below another frame, and unknown in
            # the innermost frame.
            kept = max(min(kept, proven - 1, len(track.nodes) - 1), 0)
        self._drop(track, kept)
        track.frames, track.has_newest = frames, is_all
        if kept == proven:
            return False
        new = memoryview(frames)[: (proven - kept) * size].cast("Q")
        return self._walk_new(track, snapshot, new)

    @staticmethod
    def _drop(track: Track, kept: int) -> None:
        """Forget all but the oldest frames."""
        del track.nodes[kept:], track.floors[kept:], track.sps[kept:]
        del track.eps[kept:]
        while track.unsure and track.unsure[-1] >= kept:
            track.unsure.pop()
        while track.c_words and track.c_words[-1][0] >= kept:
            track.c_words.pop()

    def _kept(self, track: Track, frames: bytes, values: memoryview) -> int:
        """Return the number of unchanged frames, counted from the oldest."""
        old, new, size = track.frames, frames, self._size
        most = min(len(track.nodes), len(new) // size)
        # nodes may be fewer than the frames of a stack with invalid frames.
        skip = 0
        while skip < most:
            part = (most - skip) * size
            if new.endswith(old[len(old) - part :]):
                break
            skip = skip * 2 + 1
        kept = max(most - skip, 0)
        top = len(values)
        for frame, place, word in track.c_words:
            if frame < kept and (place >= top or values[place] != word):
                return frame
        return kept

    def _walk_new(self, track: Track, snapshot: Snapshot, new: memoryview) -> bool:
        offsets, words = self._offsets, self._words
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
        if track.has_newest and self._is_jit_frame(new):
            pcs[0], sps[0] = UNKNOWN_PC, track.high
        local, mask, block = self._local, self.tree.magic_mask, self.tree.block_magic
        eps_known = track.eps
        for index in range(len(pcs) - 1, -1, -1):
            ep, iseq = eps[index], iseqs[index]
            if low <= ep < track.high:
                if ep <= floor or ep < below or ep >= sps[index]:
                    return False
                place = (ep - start) >> 3
                if not 2 <= place < top:
                    return self._need_values(track, ep, sps[0])
                flags, link, method = (
                    values[place],
                    values[place - 1],
                    values[place - 2],
                )
                floor = ep
            else:
                found = self._heap_words(track, snapshot, ep)
                if found is None:
                    return False
                method, link, flags = found
                place = -1
            if flags & local:
                method = self.tree.entry(method)
            else:
                method = self._outer_method(track, snapshot, method, link)
            key = (node, iseq, pcs[index], method, flags)
            child = known.get(key) or self.tree.child(*key)
            if index == 0 and iseq and (child is None or not child.is_sure):
                # The next call may already have overwritten the environment.
                child = self._by_code(key) or child
            elif iseq and child is not None and child.is_sure:
                self._methods_of[iseq] = method, flags
            if child is None:
                self._jit_frames.forget()
                return False
            if not child.is_sure or (
                flags & mask == block and not self._passes_block(track, link & ~3, iseq)
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
        return False

    def _by_code(self, key: tuple[FrameNode, int, int, int, int]) -> FrameNode | None:
        """Return the node of a frame by the last method of its code, if any."""
        node, iseq, pc, *_ = key
        last = self._methods_of.get(iseq)
        if last is None:
            return None
        key = (node, iseq, pc, *last)
        child = self.tree.nodes.get(key) or self.tree.child(*key)
        return child if child is not None and child.is_sure else None

    def _is_jit_frame(self, frames: memoryview) -> bool:
        """Return whether a JIT may run the innermost frame, which comes first.

        YJIT does not update its pc, and ZJIT not its sp either; ZJIT of 4.0 leaves no
        mark.
        """
        if not frames[self._offsets.cfp_iseq // 8]:
            return False
        word = self._jit_word
        return self.has_zjit or (word is not None and frames[word] != 0)

    def _passes_block(self, track: Track, outer: int, block: int) -> bool:
        """Return whether the frame with the ep ``outer`` passes this block."""
        if not track.low <= outer < track.high or track.is_truncated:
            return True
        eps = track.eps
        for index in range(len(eps) - 1, -1, -1):
            if eps[index] == outer:
                return self.tree.passes_block(track.nodes[index], block)
        return False

    def _need_values(self, track: Track, ep: int, sp: int) -> bool:
        """Request the words of ``ep`` for the next gather; return False if impossible.

        The words of the oldest frame are the first. If frames are omitted, all values
        below are omitted too.
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
        track.words_end = 0
        self._place_words(track)
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


def _covering(
    before: tuple[int, int], slots: Sequence[int], most: int
) -> tuple[int, int]:
    """Return bounds of memory that contains these words, the lowest ones if too large.

    They begin at a page boundary, because the page below may be unmapped.
    """
    if not slots:
        return before
    low = min(slots) & -_PAGE
    high = min(max(slots) + 8, low + most)
    if before[0] <= low and high <= before[1]:
        return before
    both = min(before[0], low), max(before[1], high)
    return both if before[1] and both[1] - both[0] <= most else (low, high)


def _changes(states: list[bytes]) -> int:
    """Return how many of ``states`` differ from the previous one."""
    return sum(one != other for one, other in pairwise(states))
