"""A Ruby VM in memory: threads and their stacks.

A running program does not wait to be read, and only the first reading counts, because
stacks that are easy to read would be overrepresented. A sample is clean, trimmed (a
marker replaces the newest frames, which are unknown), or failed. All are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rbtrace_py.errors import UnknownRuby, UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.model.stack_walk import WalkedStack, WalkLayout
from rbtrace_py.model.stacks import SampleFlags, Stack, ThreadState
from rbtrace_py.rubyvm import tls
from rbtrace_py.rubyvm.frames import FrameNode, FrameTree
from rbtrace_py.rubyvm.jit_frames import JitFrames
from rbtrace_py.rubyvm.late_code import LateCode
from rbtrace_py.rubyvm.layout import Layout
from rbtrace_py.rubyvm.oldframes import OldUnwinder
from rbtrace_py.rubyvm.threads import Threads, VmThread
from rbtrace_py.rubyvm.unwinder import Reading, Track, Unwinder
from rbtrace_py.rubyvm.values import Values
from rbtrace_py.rubyvm.walked_frames import WalkedFrames

_ATTEMPTS = 8
"""Maximum gathers to find one stack."""
_BELIEVED = 4
"""Number of instructions at which successive samples must see a doubtful frame, or its
callees. Trap handlers and finalizers run on top of any instruction. Only existing
frames make progress.
"""
_AT_REST = (ThreadState.SLEEPING, ThreadState.WAITING)
_MOST_TRACKS = 1 << 12
_MOST_KEPT = 1 << 28
"""Maximum bytes of stacks kept for comparison with the next ones."""
_GC_MODE, _GC_MARKING = 3, 1
"""Bits of ``rb_objspace_t.flags.mode``, below its other flags, and its value while
objects are marked."""
_BASES = 64
"""Number of threads that are checked for the TLS distance, each perhaps several times:
a single thread that switches fibers all the time matches once in eight attempts."""
GATHERED_AT_ONCE = 16
"""Threads whose stacks are read with one system call, which has 1024 ranges."""


class HasAddress(Protocol):
    """A thread, by the address of its ``rb_thread_t``."""

    @property
    def address(self) -> int: ...


class ControlFrame(NamedTuple):
    """A control frame as the last sample read it.

    Attributes:
        node: Its node in the tree.
        receiver: Its ``self``.
        ep: Its environment pointer.
        sp: Its stack pointer.
        jit_return: See ``jit_frames``; 0 while ZJIT of 4.1 is off.
    """

    node: FrameNode
    receiver: int
    ep: int
    sp: int
    jit_return: int = 0


class Walked(NamedTuple):
    """A thread's stack and state when it was read.

    ``fiber`` is the address of the fiber's structure, or 0 if unknown.
    """

    stack: Stack
    flags: SampleFlags
    fiber: int
    state: ThreadState


@dataclass
class Counts:
    """Counts of samples by outcome."""

    clean: int = 0
    trimmed: int = 0
    failed: int = 0


class RubyVM:
    """A VM whose structure ``rb_vm_t`` is at ``vm``.

    Args:
        memory: Memory of the process.
        layout: Layout of its Ruby.
        vm: Address of ``rb_vm_t``.
        symbols: Address of the global symbol table, or None if unknown. Then C
            functions have no names.
        is_tid: Returns whether the target has a kernel thread with this ID.
        zjit: Address of the word that is not 0 while ZJIT is on; None: no ZJIT.
    """

    def __init__(
        self,
        memory: Memory,
        layout: Layout,
        vm: int,
        symbols: int | None = None,
        is_tid: Callable[[int], bool] | None = None,
        zjit: int | None = None,
    ) -> None:
        self.memory = memory
        self.zjit = zjit
        self.layout = layout
        self.vm = vm
        self.counts = Counts()
        self.values = Values(memory, layout, symbols)
        self._threads = Threads(self.values, vm, is_tid)
        self._tree = FrameTree(self.values)
        self._walked_frames = WalkedFrames(self._tree)
        self._late_code = LateCode()
        kind = Unwinder if layout.traits.flags_in_ep else OldUnwinder
        self._unwinder = kind(memory, layout, self._tree)
        self._jit_frames = JitFrames(self.values)
        self._unwinder.watch_zjit(self._jit_frames_switch)
        self._check_for_zjit()
        self._tracks: dict[int, Track] = {}
        self._kept = 0
        self._collecting = self._find_collecting()
        self._collecting_by_running: dict[int, tuple[int, int] | None] = {}
        self._marks: list[tuple[int, int]] = []
        self._marked: list[bytes] | None = []

    def _find_collecting(self, ractor: int = 0) -> tuple[int, int] | None:
        """Return the address of the word with ``during_gc``, and the bit's mask.

        Args:
            ractor: Address of the collecting ractor; 0: the main ractor. Only 4.1, from
                August 2026, has an object space per ractor.
        """
        offsets, u64 = self.layout.offsets, self.values.u64
        if offsets.objspace_flags is None or offsets.objspace_gc_bit is None:
            return None
        try:
            if offsets.ractor_objspace is not None:
                main = u64(self.vm + (offsets.vm_main_ractor or 0))
                objspace = u64((ractor or main) + offsets.ractor_objspace)
            elif offsets.vm_objspace is not None:
                objspace = u64(self.vm + offsets.vm_objspace)
            else:
                return None
        except UnreadableMemory:
            return None
        mask = 1 << offsets.objspace_gc_bit
        return (objspace + offsets.objspace_flags, mask) if objspace > 4096 else None

    def _collecting_of(self, track: Track) -> tuple[int, int] | None:
        """Return the word that shows a collection by the thread of ``track``."""
        offsets = self.layout.offsets
        if offsets.ractor_objspace is None or not track.running:
            return self._collecting
        if track.running not in self._collecting_by_running:
            ractor = track.running - (offsets.ractor_running_ec or 0)
            found = self._find_collecting(ractor)
            self._collecting_by_running[track.running] = found
        return self._collecting_by_running[track.running]

    def collection(self) -> int:
        """Return a number that changes once code may have been freed or moved.

        It equals the kernel's number (``collection`` of ``bpf/programs/stacks.c``); 0
        if unknown. Raises UnreadableMemory and NoSuchTarget.
        """
        if self._collecting is None or not (place := self._collections()):
            return 0
        word, mask = self._collecting
        flags = self.values.u64(word)
        is_marking = flags & _GC_MODE == _GC_MARKING
        return self.values.u64(place) << 2 | is_marking << 1 | (flags & mask != 0)

    def _collections(self) -> int:
        """Return the address of the number of collections so far, 0 if unknown.

        With an object space per ractor (4.1), each object space counts its own
        collections, and Ruby keeps no sum of them.
        """
        offsets = self.layout.offsets
        count, flags = offsets.objspace_count, offsets.objspace_flags
        if self._collecting is None or count is None or flags is None:
            return 0
        if offsets.ractor_objspace is not None:
            return 0
        return self._collecting[0] - flags + count

    @property
    def _jit_frames_switch(self) -> int:
        """Address of the word that is not 0 while there are JITFrames; 0: never."""
        return (self.zjit or 0) if self.layout.traits.has_jit_frames else 0

    @property
    def has_jit_frames(self) -> bool:
        """True if ZJIT is on and keeps pc and iseq of frames in JITFrames."""
        try:
            switch = self._jit_frames_switch
            return bool(switch) and self.values.u64(switch) != 0
        except UnreadableMemory:
            return False

    def _check_for_zjit(self) -> None:
        """Check whether ZJIT of 4.0 is on, because RubyVM::ZJIT.enable may run late."""
        if self._jit_frames_switch or self.zjit is None or self._unwinder.has_zjit:
            return
        try:
            self._unwinder.has_zjit = self.values.u64(self.zjit) != 0
        except UnreadableMemory:
            return

    def tls_distance(self, threads: Iterable[HasAddress]) -> int:
        """Return the distance from each kernel thread's base to its TLS word, or 0.

        The word is the execution context if the distance is negative, else the thread.

        Args:
            threads: Some or all threads.
        """
        addresses = [thread.address for thread in threads]
        for _ in range(max(2, _BASES // max(1, len(addresses)))):
            if distance := self._tls_distance(addresses):
                return distance
        return 0

    def _tls_distance(self, addresses: Sequence[int]) -> int:
        bases = self._threads.bases(addresses)
        if self.layout.traits.has_ractors:
            return tls.distance(self.memory, ((base, ec) for base, _, ec in bases))
        own = ((base, address) for base, address, _ in bases)
        return tls.specific_distance(self.memory, own)

    def walk_layout(self, distance: int, follows: bool) -> WalkLayout:
        """Return the data that the kernel needs to walk the stacks.

        Args:
            distance: Result of ``tls_distance``.
            follows: True if forked children are walked too.

        Raises:
            UnknownRuby: The kernel cannot walk the stacks of this Ruby.
        """
        self._check_for_zjit()
        o, traits = self.layout.offsets, self.layout.traits
        if (
            not traits.flags_in_ep
            or traits.ment_imemo is None
            or o.th_ec is None
            or o.ec_thread is None
            or o.ec_fiber is None
        ):
            raise UnknownRuby(
                f"the kernel cannot walk the stacks of Ruby {self.layout.version}",
                "Use --engine memory",
            )
        running = o.vm_running_thread if not traits.has_ractors else None
        gc_place, gc_mask = self._collecting or (0, 0)
        jit_return = o.cfp_size if o.cfp_jit_return is None else o.cfp_jit_return
        return WalkLayout(
            tls=distance,
            gc_place=gc_place,
            gc_mask=gc_mask,
            gc_count=self._collections(),
            local=traits.local_flag or 2,
            running=0 if running is None else self.vm + running,
            ec_stack=o.ec_vm_stack // 8,
            ec_size=o.ec_vm_stack_size // 8,
            ec_cfp=o.ec_cfp // 8,
            ec_thread=o.ec_thread // 8,
            ec_fiber=o.ec_fiber // 8,
            words=o.cfp_size // 8,
            pc=o.cfp_pc // 8,
            sp=o.cfp_sp // 8,
            iseq=o.cfp_iseq // 8,
            ep=o.cfp_ep // 8,
            jit=jit_return // 8,
            has_zjit=self._unwinder.has_zjit,
            th_ec=o.th_ec,
            imemo_mask=self.values.imemo_mask,
            imemo_ment=self.values.imemo_flags(traits.ment_imemo),
            follows=follows,
            th_ractor=o.th_ractor or 0,
            ractor_ec=o.ractor_running_ec or 0,
            gvl_queue=o.gvl_queue or 0,
            gvl_node=0 if o.gvl_queue is None else o.th_gvl_node or 0,
            ractor_objspace=o.ractor_objspace or 0,
            gc_flags=o.objspace_flags or 0,
            queue=0 if running is None else self.vm + (o.gvl_queue or 0),
            zjit=self._jit_frames_switch,
            holder=0
            if o.gvl_holder is None
            else o.gvl_holder + (0 if running is None else self.vm),
        )

    def begin_naming(self) -> None:
        """Prepare for stacks that the kernel walked; call this before each batch."""
        self._tree.trim()
        self._tree.note_fresh()

    def with_code(self, stacks: Iterable[WalkedStack]) -> list[WalkedStack]:
        """Fill in the iseq and pc of JITFrames in stacks that the kernel walked.

        Call this again before they are named again. Raises NoSuchTarget.
        """
        return [self._jit_frames.with_code(stack) for stack in stacks]

    def without_late_code(self, stacks: Sequence[WalkedStack]) -> list[WalkedStack]:
        """Return the stacks of the named batch that must be named again (``LateCode``).

        Code that may be newer than these stacks is removed. The list is empty if the
        number of collections is unknown. Raises NoSuchTarget.
        """
        fresh = self._tree.take_fresh()
        try:
            now = self.collection()
        except UnreadableMemory:
            now = 0
        return self._late_code.without(stacks, fresh, now) if now else []

    def has_same_code(self, stacks: Iterable[memoryview]) -> bool:
        """Return whether the code of these stacks equals the code that named them.

        If not, replaced code is forgotten, and the stacks must be named again.
        """
        return self._walked_frames.has_same_code(stacks)

    def named(self, frames: memoryview, collecting: int) -> tuple[Stack, SampleFlags]:
        """Return the stack of raw frames that the kernel walked, newest first.

        Args:
            frames: Words of the frames.
            collecting: As in ``WalkedStack``.
        """
        return self._walked_frames.stack(frames, collecting)

    def threads(self) -> list[VmThread]:
        """Return all threads of all ractors, the main thread first.

        Raises UnreadableMemory if the VM does not exist yet or any more.
        """
        found = self._threads.all()
        self._collecting_by_running.clear()
        for thread in found:
            track = self._tracks.get(thread.address)
            if track is None or track.running != thread.running:
                self._tracks[thread.address] = Track(thread.address, thread.running)
        self._forget(found)
        self._mark(found)
        return found

    def _mark(self, found: list[VmThread]) -> None:
        """Store the memory that shows changes of the thread list."""
        try:
            self._marks, newest = self._threads.marks()
            self._marked = self.memory.gather(self._marks) if self._marks else []
        except UnreadableMemory:
            self._marked = None
            return
        if not {thread.address for thread in found}.issuperset(newest):
            self._marked = None  # a thread joined while the list was read

    def has_other_threads(self) -> bool:
        """Return whether a thread has joined since ``threads``, with one small read.

        The result may be True for other changes of the list, and if it cannot be read.
        Raises NoSuchTarget once the process is gone.
        """
        if not self._marks:
            return self._marked is None
        try:
            return self.memory.gather(self._marks) != self._marked
        except UnreadableMemory:
            return True

    def tids(self, threads: Sequence[HasAddress]) -> list[int | None]:
        """Return the current kernel thread of each thread, because some may move.

        Raises UnreadableMemory, and NoSuchTarget once the process is gone.
        """
        return self._threads.tids([thread.address for thread in threads])

    def runs_no_code(self, thread: HasAddress) -> bool:
        """Return whether all frames of its last reading are hidden."""
        track = self._track(thread.address)
        count = len(track.frames) // self.layout.offsets.cfp_size
        is_all = track.has_newest and len(track.nodes) == count
        return is_all and not any(one.frame for one in track.nodes)

    def has_stack(self, thread: HasAddress) -> bool:
        """Return whether the thread has started and not ended; True if unknown."""
        return self._threads.has_stack(thread.address)

    def _forget(self, found: list[VmThread]) -> None:
        if len(self._tracks) > len(found):
            alive = {thread.address for thread in found}
            for address in [one for one in self._tracks if one not in alive]:
                del self._tracks[address]

    def revalidate(self) -> None:
        """Check the code read so far for changes.

        Call this every second if stacks are read from memory. For stacks walked by the
        kernel, ``has_same_code`` is used instead.
        """
        self._tree.revalidate()
        self._unwinder.forget_code()
        self._check_for_zjit()
        for track in self._tracks.values():
            if track.walked is None or track.walked.flags:
                track.parts = []  # invalid frames may be valid by now

    def sample(self, thread: HasAddress) -> Walked | None:
        """Return a thread's stack and state, or None if it could not be read.

        Raises NoSuchTarget once the process is gone.
        """
        self._tree.trim()
        return self._sample(self._track(thread.address))

    def last_sample(self, thread: HasAddress) -> Walked | None:
        """Return the last sample of a thread that had no CPU since, or None.

        None means that its stack must be read: the sample was not certain, code was
        replaced, or the thread had the GVL, which another thread may have by now.
        """
        track = self._track(thread.address)
        if not track.parts or track.generation != self._tree.generation:
            return None
        if track.walked.state is ThreadState.RUNNING:
            return None
        return self._count(track.walked)

    def _track(self, address: int) -> Track:
        track = self._tracks.get(address)
        if track is None:
            if len(self._tracks) >= _MOST_TRACKS:
                self._tracks.clear()
            track = self._tracks[address] = Track(address, 0)
        return track

    def control_frames(self, thread: HasAddress) -> list[ControlFrame]:
        """Return the control frames of the last sample, newest first.

        Hidden frames are included. Unknown frames, which a marker replaces, are not.
        """
        track, offsets = self._track(thread.address), self.layout.offsets
        words, size = offsets.cfp_size // 8, track.depth * offsets.cfp_size
        raw = memoryview(track.frames)[len(track.frames) - size :].cast("Q")
        places = [offsets.cfp_self, offsets.cfp_ep, offsets.cfp_sp]
        if self._unwinder.has_jit_frames:
            places.append(offsets.cfp_jit_return or 0)
        columns = (raw[offset // 8 :: words].tolist() for offset in places)
        return list(map(ControlFrame, reversed(track.nodes[: track.depth]), *columns))

    def sample_all(self, threads: Iterable[HasAddress]) -> list[Walked | None]:
        """Return the stack and state of each thread, as ``sample`` does.

        Their stacks are gathered together, so many threads cost little more than the
        reads.
        """
        self._tree.trim()
        tracks = [self._track(thread.address) for thread in threads]
        found: list[Walked | None] = []
        for start in range(0, len(tracks), GATHERED_AT_ONCE):
            found += self._sample_some(tracks[start : start + GATHERED_AT_ONCE])
        return found

    def _sample_some(self, tracks: list[Track]) -> list[Walked | None]:
        if self._tree.is_late():
            self.counts.failed += len(tracks)
            return [None] * len(tracks)
        unwinder = self._unwinder
        words = map(self._collecting_of, tracks)
        wanted = list(map(unwinder.ranges, tracks, words))
        for track, ranges in zip(tracks, wanted, strict=True):
            track.gathered = ranges
        try:
            parts = self.memory.gather([pair for ranges in wanted for pair in ranges])
        except UnreadableMemory:
            return [self._sample(track) for track in tracks]
        found: list[Walked | None] = []
        start = 0
        for track, ranges in zip(tracks, wanted, strict=True):
            end = start + len(ranges)
            found.append(self._sample(track, parts[start:end]))
            start = end
        return found

    def _sample(self, track: Track, parts: list[bytes] | None = None) -> Walked | None:
        """Read a stack once, from ``parts`` if it was already gathered; count it."""
        if parts is None:
            try:
                parts = self._gather(track)
            except UnreadableMemory:
                track.leave()
        if parts and parts == track.parts and track.generation == self._tree.generation:
            return self._count(track.walked)
        reading = self._read(track, parts)
        if reading is None:
            track.forget()
            return self._count(None)
        if reading.unsure:
            reading = self._unwinder.recheck(reading)
        depth = self._depth(reading)
        is_clean = self._is_whole(reading) and depth == len(reading.nodes)
        rests = is_clean and not reading.unsure
        if not is_clean and self._is_at_rest(reading):
            # Nothing changes, so all valid frames are certain.
            reading = self._unwinder.with_all_proven(reading)
            if track.ranges is None and (wider := self._read(track, None)):
                # Its newest frames needed more values than the first gather contained.
                reading = self._unwinder.with_all_proven(wider)
            depth, rests = len(reading.nodes), True
            is_clean = self._is_whole(reading)
        track.depth = depth
        walked = self._walked(reading, depth, is_clean)
        track.parts, track.walked = reading.parts if rests else [], walked
        return self._count(walked)

    def _depth(self, reading: Reading) -> int:
        """Return the number of frames below the first doubtful one.

        A doubtful frame is accepted after successive samples saw ``_BELIEVED``
        instructions in the frame, or in its callees.
        """
        nodes, track = reading.nodes, reading.track
        newest = set(nodes[-1:]) if reading.is_whole else set()
        known, track.doubts = track.doubts, {}
        depth = len(nodes)
        for index in reversed(reading.unsure):
            node = nodes[index]
            key = (nodes[index - 1] if index else None, node.iseq or node)
            places = known.get(key, set())
            if len(places) < _BELIEVED:
                places = places | newest
            track.doubts[key] = places
            if len(places) < _BELIEVED:
                depth = index
        return depth

    def _is_at_rest(self, reading: Reading) -> bool:
        """Return whether a thread seems to be at rest and a second read is equal.

        Such a thread waits, has no visible frame, or did not change between the probes.
        """
        is_idle = reading.is_whole and not _has_frames(reading)
        if (
            not (is_idle or self._unwinder.is_unchanged(reading))
            and self._state(reading) not in _AT_REST
        ):
            return False
        try:
            return self.memory.gather(reading.track.gathered)[2:] == reading.parts[2:]
        except UnreadableMemory:
            return False

    def _gather(self, track: Track) -> list[bytes]:
        word = self._collecting_of(track)
        track.gathered = self._unwinder.ranges(track, word)
        return self.memory.gather(track.gathered)

    def _is_whole(self, reading: Reading) -> bool:
        """Return whether all frames are valid, and an active thread has a visible one.

        For a moment after switching to a new fiber, a thread has none: it has the
        fiber's stack before the fiber's block is called, and before the VM names it as
        the running thread. This cannot be distinguished from a thread that parses a
        program, or that C code started.
        """
        return reading.is_whole and (
            _has_frames(reading)
            or self._state(reading) not in (ThreadState.RUNNING, ThreadState.WAITING)
        )

    def _count(self, walked: Walked | None) -> Walked | None:
        if walked is None:
            self.counts.failed += 1
        elif SampleFlags.TRIMMED in walked.flags:
            self.counts.trimmed += 1
        else:
            self.counts.clean += 1
        return walked

    def _read(self, track: Track, parts: list[bytes] | None) -> Reading | None:
        """Read a stack once, extending the ranges as needed."""
        unwinder = self._unwinder
        for _ in range(_ATTEMPTS):
            try:
                if parts is None:
                    parts = self._gather(track)
                reading = unwinder.read(track, parts)
            except UnreadableMemory:
                track.leave()
                return None
            parts = None
            if reading is not None:
                self._keep(track)
                return reading
        return None

    def _keep(self, track: Track) -> None:
        """Limit the memory of all tracks."""
        if track.counted is track.gathered:
            return
        track.counted = track.gathered
        self._kept += sum(size for _, size in track.gathered)
        if self._kept > _MOST_KEPT:
            for other in self._tracks.values():
                if other is not track:
                    other.leave()
            self._kept = sum(size for _, size in track.gathered)

    def _state(self, reading: Reading) -> ThreadState:
        return self._threads.state(
            reading.status, reading.track.thread, reading.ec, reading.running
        )

    def _walked(self, reading: Reading, depth: int, is_clean: bool) -> Walked:
        """Return the stack of the ``depth`` oldest frames."""
        state = self._state(reading)
        flags = SampleFlags.CLEAN if is_clean else SampleFlags.TRIMMED
        if reading.is_truncated:
            flags |= SampleFlags.TRUNCATED
        node = reading.nodes[depth - 1] if depth else self._tree.root
        collects = state is ThreadState.RUNNING
        mode = self._mode(reading) if collects else 0
        stack = self._tree.stack(node, mode, is_changed=not is_clean)
        return Walked(stack, flags, reading.fiber, state)

    def _mode(self, reading: Reading) -> int:
        """Return 0, or 1 + ``enum gc_mode`` of the current collection."""
        mask = self._collecting[1] if self._collecting else 0
        if not reading.flags & mask:
            return 0
        has_mode = mask > _GC_MODE  # up to 2.1 the flag is a separate word
        return 1 + (reading.flags & _GC_MODE if has_mode else 0)


def _has_frames(reading: Reading) -> bool:
    """Return whether a reading has a visible frame."""
    return any(node.frame is not None for node in reversed(reading.nodes))
