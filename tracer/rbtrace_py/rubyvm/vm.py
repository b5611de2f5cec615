"""A Ruby VM in a memory: threads and their stacks.

A running program does not wait to be read, and the first reading counts: stacks that
are easy to read must not win. A sample is clean, trimmed (a marker stands for the
newest frames, which are unknown), or missing; the counts are kept.
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
"""Gathers at most to find out where one stack is."""
_BELIEVED = 4
"""Number of instructions at which successive samples must see a doubtful frame, or its
callees. Handlers of traps and finalizers run upon any instruction. Only frames that
exist move on.
"""
_AT_REST = (ThreadState.SLEEPING, ThreadState.WAITING)
_MOST_TRACKS = 1 << 12
_MOST_KEPT = 1 << 28
"""Bytes of stacks that are kept to compare the next ones with."""
_GC_MODE, _GC_MARKING = 3, 1
"""Bits of ``rb_objspace_t.flags.mode``, below those of its other flags; while what
lives is marked."""
_BASES = 64
"""Threads looked at for what they say they run, each perhaps several times: one alone
that changes fibers all the time says it at one look of eight."""
GATHERED_AT_ONCE = 16
"""Threads whose stacks are taken with one system call, which has 1024 ranges."""


class HasAddress(Protocol):
    """A thread, by the address of its ``rb_thread_t``."""

    @property
    def address(self) -> int: ...


class ControlFrame(NamedTuple):
    """A control frame as the last sample read it.

    node: its place in the tree; receiver: its ``self``; ep, sp: its environment, stack
        pointer
    jit_return: see ``jit_frames``; 0 while ZJIT of 4.1 is off
    """

    node: FrameNode
    receiver: int
    ep: int
    sp: int
    jit_return: int = 0


class Walked(NamedTuple):
    """A thread's stack and state when it was read.

    fiber: address of the fiber's structure, 0 where not known
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

    symbols: address of the global symbol table, None if not known: C functions have
    no names then
    is_tid: whether the target has a kernel thread of that id
    zjit: address of the word that is not 0 while ZJIT is on, None: there is no ZJIT
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

        ractor: address of the ractor that collects; 0: the main one. Only 4.1, from
            August 2026 on, has an object space per ractor
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
        """Return the word that tells of a collection by the thread of ``track``."""
        offsets = self.layout.offsets
        if offsets.ractor_objspace is None or not track.running:
            return self._collecting
        if track.running not in self._collecting_by_running:
            ractor = track.running - (offsets.ractor_running_ec or 0)
            found = self._find_collecting(ractor)
            self._collecting_by_running[track.running] = found
        return self._collecting_by_running[track.running]

    def collection(self) -> int:
        """Return a number that is another one once code may have been freed or moved.

        As the kernel's walk says it (``collection`` of ``bpf/programs/stacks.c``); 0
        where it is not known. Raises UnreadableMemory and NoSuchTarget.
        """
        if self._collecting is None or not (place := self._collections()):
            return 0
        word, mask = self._collecting
        flags = self.values.u64(word)
        is_marking = flags & _GC_MODE == _GC_MARKING
        return self.values.u64(place) << 2 | is_marking << 1 | (flags & mask != 0)

    def _collections(self) -> int:
        """Return the address of the number of collections so far, 0 if not known.

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
        """Return whether ZJIT is on, and keeps pc and iseq of frames in JITFrames."""
        try:
            switch = self._jit_frames_switch
            return bool(switch) and self.values.u64(switch) != 0
        except UnreadableMemory:
            return False

    def _check_for_zjit(self) -> None:
        """See if ZJIT of 4.0 is on; programs may switch it on late
        (RubyVM::ZJIT.enable)."""
        if self._jit_frames_switch or self.zjit is None or self._unwinder.has_zjit:
            return
        try:
            self._unwinder.has_zjit = self.values.u64(self.zjit) != 0
        except UnreadableMemory:
            return

    def tls_distance(self, threads: Iterable[HasAddress]) -> int:
        """Return where each kernel thread says what it runs, from its base; 0: unknown.

        Below 0 is the execution context, above it the thread.

        threads: some or all there are
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
        """Return what the kernel needs to walk the stacks.

        distance: of ``tls_distance``

        Raises UnknownRuby where the kernel cannot.
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
        return WalkLayout(
            tls=distance,
            collecting=self._collecting or (0, 0),
            collections=self._collections(),
            local_flag=traits.local_flag or 2,
            running=0 if running is None else self.vm + running,
            ec_vm_stack=o.ec_vm_stack,
            ec_vm_stack_size=o.ec_vm_stack_size,
            ec_cfp=o.ec_cfp,
            ec_thread=o.ec_thread,
            ec_fiber=o.ec_fiber,
            cfp_size=o.cfp_size,
            cfp_pc=o.cfp_pc,
            cfp_sp=o.cfp_sp,
            cfp_iseq=o.cfp_iseq,
            cfp_ep=o.cfp_ep,
            cfp_jit_return=o.cfp_jit_return,
            th_ec=o.th_ec,
            th_ractor=o.th_ractor or 0,
            ractor_running_ec=o.ractor_running_ec or 0,
            has_zjit=self._unwinder.has_zjit,
            zjit=self._jit_frames_switch,
            ractor_objspace=o.ractor_objspace or 0,
            objspace_flags=o.objspace_flags or 0,
            imemo_mask=self.values.imemo_mask,
            method_entry=self.values.imemo_flags(traits.ment_imemo),
            follows=follows,
            gvl_queue=o.gvl_queue or 0,
            gvl_node=0 if o.gvl_queue is None else o.th_gvl_node or 0,
            queue=0 if running is None else self.vm + (o.gvl_queue or 0),
            gvl_holder=0
            if o.gvl_holder is None
            else o.gvl_holder + (0 if running is None else self.vm),
        )

    def begin_naming(self) -> None:
        """Be ready for stacks that the kernel walked; before each batch of them."""
        self._tree.trim()
        self._tree.note_fresh()

    def with_code(self, stacks: Iterable[WalkedStack]) -> list[WalkedStack]:
        """Return stacks that the kernel walked with iseq and pc of their JITFrames.

        To be called again before they are named again. Raises NoSuchTarget.
        """
        return [self._jit_frames.with_code(stack) for stack in stacks]

    def without_late_code(self, stacks: Sequence[WalkedStack]) -> list[WalkedStack]:
        """Return those of a batch that was just named that are to be named again, as
        ``LateCode`` does, without code that may have come after they were walked.

        Empty where the number of collections is not known. Raises NoSuchTarget.
        """
        fresh = self._tree.take_fresh()
        try:
            now = self.collection()
        except UnreadableMemory:
            now = 0
        return self._late_code.without(stacks, fresh, now) if now else []

    def has_same_code(self, stacks: Iterable[memoryview]) -> bool:
        """Return whether the code of these stacks is what they were named by.

        If not, what was replaced is forgotten, and they are to be named anew.
        """
        return self._walked_frames.has_same_code(stacks)

    def named(self, frames: memoryview, collecting: int) -> tuple[Stack, SampleFlags]:
        """Return the stack of raw frames that the kernel walked, the newest first.

        collecting: as in ``WalkedStack``
        """
        return self._walked_frames.stack(frames, collecting)

    def threads(self) -> list[VmThread]:
        """Return all threads of all ractors, the main one first.

        Raises UnreadableMemory if the VM is not there (not yet, or not any more).
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
        """Remember by what a list that is another will be known."""
        try:
            self._marks, newest = self._threads.marks()
            self._marked = self.memory.gather(self._marks) if self._marks else []
        except UnreadableMemory:
            self._marked = None
            return
        if not {thread.address for thread in found}.issuperset(newest):
            self._marked = None  # it came while the list was read

    def has_other_threads(self) -> bool:
        """Has a thread joined since ``threads`` was called? One read, of some bytes.

        May be True for another change of the list, and where it cannot be read. Raises
        NoSuchTarget once the process is gone.
        """
        if not self._marks:
            return self._marked is None
        try:
            return self.memory.gather(self._marks) != self._marked
        except UnreadableMemory:
            return True

    def tids(self, threads: Sequence[HasAddress]) -> list[int | None]:
        """Return which kernel thread each is on now, where some are moving.

        Raises UnreadableMemory, and NoSuchTarget once the process is gone.
        """
        return self._threads.tids([thread.address for thread in threads])

    def runs_no_code(self, thread: HasAddress) -> bool:
        """Were all its frames, when it was read last, those that are never shown?"""
        track = self._track(thread.address)
        count = len(track.frames) // self.layout.offsets.cfp_size
        is_all = track.has_newest and len(track.nodes) == count
        return is_all and not any(one.frame for one in track.nodes)

    def has_stack(self, thread: HasAddress) -> bool:
        """Has the thread begun, and not ended? True as well if that is not known."""
        return self._threads.has_stack(thread.address)

    def _forget(self, found: list[VmThread]) -> None:
        if len(self._tracks) > len(found):
            alive = {thread.address for thread in found}
            for address in [one for one in self._tracks if one not in alive]:
                del self._tracks[address]

    def revalidate(self) -> None:
        """Check what was read of the program's code.

        To be called every second where stacks are read from memory. Of those that the
        kernel walked ``has_same_code`` checks each.
        """
        self._tree.revalidate()
        self._unwinder.forget_code()
        self._check_for_zjit()
        for track in self._tracks.values():
            if track.walked is None or track.walked.flags:
                track.parts = []  # what could not be understood may be by now

    def sample(self, thread: HasAddress) -> Walked | None:
        """Return what a thread is doing, None if that could not be read.

        Raises NoSuchTarget once the process is gone.
        """
        self._tree.trim()
        return self._sample(self._track(thread.address))

    def last_sample(self, thread: HasAddress) -> Walked | None:
        """Return the last sample of a thread that had no CPU since.

        None: its stack has to be read, as the sample was not certain, code was
        replaced, or the thread had the GVL: another thread may have it by now.
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
        """Return the control frames of the last sample, the newest first.

        Frames that are never shown are among them; unknown ones, for which a marker
        stands, are not.
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
        """Return what each of ``threads`` is doing, as sample does.

        Their stacks are gathered together, so that many threads cost little more
        than the reading.
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
        """Read a stack once, from ``parts`` if it was gathered already; count it."""
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
            reading = self._unwinder.judge_again(reading)
        depth = self._depth(reading)
        is_clean = self._is_whole(reading) and depth == len(reading.nodes)
        rests = is_clean and not reading.unsure
        if not is_clean and self._rests(reading):
            # Nothing changes: all that makes sense is certain.
            reading = self._unwinder.of_rest(reading)
            if track.ranges is None and (wider := self._read(track, None)):
                # Its newest frames needed more values than the first gather had.
                reading = self._unwinder.of_rest(wider)
            depth, rests = len(reading.nodes), True
            is_clean = self._is_whole(reading)
        track.depth = depth
        walked = self._walked(reading, depth, is_clean)
        track.parts, track.walked = reading.parts if rests else [], walked
        return self._count(walked)

    def _depth(self, reading: Reading) -> int:
        """Return the number of frames below the first doubtful one.

        A doubtful frame is believed after successive samples saw ``_BELIEVED``
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

    def _rests(self, reading: Reading) -> bool:
        """Return whether a thread that seems to be at rest shows the same once more.

        Such a thread waits, has no frame to show, or did not change between the probes.
        """
        is_idle = reading.is_whole and not _has_frames(reading)
        if (
            not (is_idle or self._unwinder.is_still(reading))
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
        """Are all of its frames good, and is there one to show, if the thread can run?

        There is none for a moment where a thread switches to a new fiber: it has that
        fiber's stack before the fiber's block is called, and before the VM says that it
        is the one that runs. It is the same where Ruby parses a program or C code began
        the thread, which nothing tells apart.
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
        """Read once, finding out on the way what there is to read."""
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
        """See to it that what tracks keep stays bounded, however many there are."""
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
        """Return 0, or 1 + ``enum gc_mode`` of the collection that goes on."""
        mask = self._collecting[1] if self._collecting else 0
        if not reading.flags & mask:
            return 0
        has_mode = mask > _GC_MODE  # up to 2.1 the flag is a word of its own
        return 1 + (reading.flags & _GC_MODE if has_mode else 0)


def _has_frames(reading: Reading) -> bool:
    """Is there a frame to show?"""
    return any(node.frame is not None for node in reversed(reading.nodes))
