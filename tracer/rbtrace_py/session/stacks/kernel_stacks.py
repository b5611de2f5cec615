"""Stacks that the kernel walks, matched with their Ruby processes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.open_times import OpenTimes, ToldTimes
from rbtrace_py.aggregate.run_times import RunTimes, ThreadId
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.bpf.stack_walker import MOST_STACKS, StackWalker
from rbtrace_py.errors import BpfError, NoSuchTarget, UnknownRuby
from rbtrace_py.linux.btf import Btf
from rbtrace_py.linux.clocks import wall_offset
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.kernel_frames import KernelFrames
from rbtrace_py.linux.process import USE_HOST_PIDS, host_pid_namespace
from rbtrace_py.linux.tasks import ran_ns
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.stack_walk import (
    MOST_KERNEL_FRAMES,
    WalkedStack,
    WalkLayout,
    Weighing,
)
from rbtrace_py.model.stacks import RubyThread, Sample, SampleFlags, Stack, ThreadState
from rbtrace_py.rubyvm.walked_frames import UNRESOLVED
from rbtrace_py.session.stacks import thread_run_times
from rbtrace_py.session.stacks.off_cpu import OffCpuStacks, waiting_threads
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.stack_events import EventSampling

_LOSSES = {
    Counter.LOST: "buffer_full",
    Counter.UNREADABLE: "unreadable",
    Counter.UNKNOWN_THREAD: "unknown_thread",
    Counter.NO_ROOM: "no_room",
}
"""Counters of failed samples, and their names in ``Statistics``."""
_NOT_WALKED = {Counter.IN_USE: "in_use", Counter.NEGATIVE: "no_weight"}
"""Counters of events whose stack was not walked."""
_TRIES = 3
_CHANGING_SECONDS = 10.0
"""Seconds after a code replacement in which each batch checks the code, instead of once
per second. Within this time, code that may be newer than a sample is not used to name
it."""
_SEARCHED_SECONDS = 5.0
"""Seconds to search for the thread pointer's TLS offset, which fibers may hide."""
_MOST_UNCHECKED = 1 << 10
"""Maximum number of stacks whose code is not checked yet."""
_MOST_HELD = 1 << 12
"""Maximum number of stacks of unattached processes."""
_OFFSETS = {
    "FSBASE_OFFSET": ("task_struct.thread.fsbase",),
    "PID_OFFSET": ("task_struct.pid",),
    "TGID_OFFSET": ("task_struct.tgid",),
    "STATE_OFFSET": ("task_struct.__state", "task_struct.state"),
    "RAN_OFFSET": ("task_struct.se.sum_exec_runtime",),
    "STACK_OFFSET": ("task_struct.stack",),
    "FILES_OFFSET": ("task_struct.files",),
    "FDTABLE_OFFSET": ("files_struct.fdt",),
    "FDS_OFFSET": ("fdtable.fd",),
    "INODE_OFFSET": ("file.f_inode",),
    "INODE_MODE_OFFSET": ("inode.i_mode",),
}
"""Offsets that the programs need, and the names of the fields in different kernels."""
_GONE = Stack((UNRESOLVED,))
_WAITING_MODES = (SamplingMode.OFFCPU, SamplingMode.WALL)
"""Modes whose samples include waiting time."""
_WEIGHINGS = {
    SamplingMode.CPU: Weighing.RUN_TIME,
    SamplingMode.OFFCPU: Weighing.OFF_TIME,
    SamplingMode.WALL: Weighing.ALL_TIME,
    SamplingMode.EVENT: Weighing.EVENTS,
    SamplingMode.GVL: Weighing.GVL_TIME,
}

Add = Callable[[Sample], object]


_Seen = Sample | WalkedStack
"""A named stack, or its frames if its process is not attached yet."""


class KernelStacks(Closing):
    """The BPF engine: the stack walker, and the state of the threads of each process.

    Args:
        options: Options of the sampling.
        follows: Walk the stacks of children, too.
        statistics: Receives the counts.
        notes: Receives notes for the user.

    Attributes:
        events: In mode event, the events, once ``start`` was called.
        walker: Walker of the stacks.
        wall_offset: Sample time minus CLOCK_MONOTONIC, in ns.

    Raises:
        NotPermitted, BpfError, NoBtf: The kernel or the machine is unsuitable.
    """

    name = EngineChoice.BPF.value
    events: EventSampling | None = None
    _kernel_frames: KernelFrames | None = None

    def __init__(
        self,
        options: SamplingOptions,
        follows: bool,
        statistics: Statistics,
        notes: Notes,
    ) -> None:
        self._options = options
        self._notes = notes
        self._weighing = _WEIGHINGS[options.mode]
        self._is_of_gvl = options.mode is SamplingMode.GVL
        self._has_weight = False
        event = options.event
        self._event_weight = event.every if event and not event.weight else 0
        self._follows = follows
        self._statistics = statistics
        self._rubies: dict[int, RubyProcess] = {}
        self._layouts: dict[int, tuple[int, WalkLayout]] = {}
        self._placed: dict[int, dict[int, int]] = {}
        self._seen: dict[bytes, _Seen] = {}
        self._before: dict[bytes, _Seen] = {}
        self._older: dict[bytes, _Seen] = {}
        self._held: list[tuple[WalkedStack, WalkedStack]] = []
        self._unchecked: list[WalkedStack] = []
        self._unnamed: list[WalkedStack] = []
        self._changing_until = 0.0
        self._failed = self._unknown = self._begun = 0
        self._open = OpenTimes()
        self._told = ToldTimes()
        self._run_times: RunTimes[WalkedStack] = RunTimes()
        self._put_aside: list[WalkedStack] = []
        self._off_cpu = OffCpuStacks()
        if options.kernel_frames:
            self._kernel_frames = KernelFrames()
        self.walker = StackWalker(
            options.rate,
            options.each,
            _offsets(),
            self._weighing,
            options.least_ns,
            options.kernel_frames,
        )
        self.wall_offset = wall_offset()
        self._started = self._stopped = 0

    @property
    def started_ns(self) -> int:
        """CLOCK_REALTIME in ns when walking started; 0: with the events, or not yet."""
        is_known = self._started and self.events is None
        return self._started + self.wall_offset if is_known else 0

    @property
    def is_changing(self) -> bool:
        """True if code was replaced recently."""
        return time.monotonic() < self._changing_until

    @property
    def seen(self) -> int:
        """Number of samples so far, including those not yet passed on.

        A thread that waits all the time counts as one sample.
        """
        counters = self.walker.counters
        no_samples = sum(counters[one] for one in (Counter.NO_RUBY, *_LOSSES))
        return counters[Counter.SEEN] - no_samples + self._begun

    def loss_notes(self) -> Iterator[str]:
        """Yield why samples failed and which events were ignored, one note per line."""
        counters = self.walker.counters
        if number := counters[Counter.NO_ROOM]:
            yield (
                f"{number:,} samples failed: there is room for {MOST_STACKS:,}"
                " different stacks per second"
            )
        if number := counters[Counter.LOST]:
            yield f"{number:,} samples failed: the buffer was full"
        if number := counters[Counter.UNREADABLE]:
            yield f"{number:,} samples failed: memory of their stacks was missing"
        if number := counters[Counter.UNKNOWN_THREAD]:
            yield f"{number:,} samples failed: their threads were not known yet"
        if number := counters[Counter.NO_KERNEL_STACK]:
            yield f"{number:,} samples lack the kernel's frames: it could not read them"
        if number := counters[Counter.KERNEL_STACK_CUT]:
            yield (
                f"{number:,} samples have {MOST_KERNEL_FRAMES} frames of the kernel,"
                " the most that it gives: older ones may be missing"
            )
        if self._is_of_gvl and not self._has_weight:
            yield (
                "no thread was seen to hold the GVL while another waited for it;"
                " --engine memory counts every holder"
            )
        if self._weighing is not Weighing.EVENTS:
            return
        if number := counters[Counter.NO_RUBY]:
            yield f"{number:,} events came from threads that do not run Ruby"
        if number := counters[Counter.NEGATIVE]:
            why = "their weight was negative, too large, or missing"
            yield f"{number:,} events failed: {why}"
        if number := counters[Counter.IN_USE]:
            yield f"{number:,} events failed: too many at once on one CPU"

    def start(self, targets: Targets) -> None:
        """Set the unit of the statistics. In mode event, attach to the events.

        Raises:
            UsageError, NoSuchProbe, NotPermitted, BpfError
        """
        if not self._weighing.has_ticks:
            self._statistics.rate = 0.0
        event = self._options.event
        if event is None:
            return
        self._statistics.unit = event.unit_of_weights
        from rbtrace_py.session.stacks.stack_events import EventSampling

        events = EventSampling(targets, event, self.walker)
        self.events = events.__enter__()
        self._notes.add(*events.notes)

    def attach(self, ruby: RubyProcess) -> None:
        """Walk the stacks of a process.

        Raises:
            UnknownRuby: The kernel cannot walk them.
        """
        pid = ruby.process.pid
        self._rubies[pid] = ruby
        self._check_waits(ruby)
        distance = ruby.vm.tls_distance(ruby.threads)
        layout = ruby.vm.walk_layout(distance, self._follows)
        if self._is_of_gvl and not (layout.gvl_node and layout.holder):
            raise UnknownRuby(
                f"cannot find the threads that wait for the GVL of Ruby {ruby.version}"
            )
        if ruby.vm.has_jit_frames and not self.walker.can_walk_zjit:
            raise UnknownRuby(
                f"the kernel cannot walk frames of ZJIT of Ruby {ruby.version} before"
                " Linux 6.9",
                "Use --engine memory",
            )
        self._placed.pop(pid, None)
        if not distance:
            self._placed[pid] = {}
            self._place(ruby)
        self._layouts[pid] = distance, layout
        since_birth = self.walker.is_walked(pid)
        began = time.monotonic_ns()
        self.walker.walk(pid, layout)
        self._started = self._started or began
        if self._weighing.has_run_time and not since_birth:
            thread_run_times.begin(self._run_times, ruby)
        if self._weighing.has_switches:
            self._begin_waiting(ruby)

    def _check_waits(self, ruby: RubyProcess) -> None:
        """Check whether all its threads have kernel threads of their own.

        BPF only sees the waits of such threads. If the engine can still be chosen,
        raise UnknownRuby; else add a note.
        """
        options = self._options
        if not (ruby.has_moving_threads and options.mode in _WAITING_MODES):
            return
        text = (
            f"threads of process {ruby.process.pid} share kernel threads (M:N), and BPF"
            " does not see them wait"
        )
        may_choose = options.may_choose and not self._statistics.started_ns
        if may_choose and options.mode is SamplingMode.WALL:
            raise UnknownRuby(text)
        self._notes.add(text)

    def _begin_waiting(self, ruby: RubyProcess) -> None:
        """Read the stacks of threads that already wait, and may wait until the end."""
        mode = SamplingMode.GVL if self._is_of_gvl else SamplingMode.WALL
        for number, (sample, off_cpu) in enumerate(waiting_threads(ruby, mode)):
            tid = sample.thread.tid or 0
            ran = ran_ns(ruby.process, tid)
            held = ruby.held_gvl(sample.thread.address) if self._is_of_gvl else None
            key = self.walker.begin_off_cpu(sample, off_cpu, number, ran, held)
            stack = sample.stack
            if self._kernel_frames is not None:
                add = self._kernel_frames.add_sleeping_frames
                stack = add(stack, ruby.process, tid)
            self._seen[key] = sample._replace(stack=stack)
            self._begun += 1

    def detach(self, ruby: RubyProcess) -> None:
        """Stop walking the stacks of a process."""
        pid = ruby.process.pid
        self._rubies.pop(pid, None)
        if self._layouts.pop(pid, None) is not None:
            self.walker.leave(pid)
            self._displace(pid)

    def _displace(self, pid: int) -> None:
        for tid in self._placed.pop(pid, {}):
            self.walker.displace(pid, tid)

    def refresh(self, ruby: RubyProcess) -> None:
        """Update the threads of a process, and the layout once ZJIT is on."""
        self._check_waits(ruby)
        pid = ruby.process.pid
        if pid in self._placed:
            self._place(ruby)
        if pid in self._layouts:
            distance, before = self._layouts[pid]
            if not distance and ruby.process.seen < _SEARCHED_SECONDS:
                distance = ruby.vm.tls_distance(ruby.threads)
            layout = ruby.vm.walk_layout(distance, self._follows)
            if layout != before:
                self._layouts[pid] = distance, layout
                self.walker.walk(pid, layout)
                if distance:
                    self._displace(pid)

    def _place(self, ruby: RubyProcess) -> None:
        """Map kernel threads to Ruby threads; their memory does not reveal this."""
        pid = ruby.process.pid
        before, now = self._placed[pid], ruby.tids
        for tid in before.keys() - now.keys():
            self.walker.displace(pid, tid)
        for tid, thread in now.items():
            if before.get(tid) != thread:
                self.walker.place(pid, tid, thread)
        self._placed[pid] = now

    def _find_unknown(self) -> None:
        """List new threads if the kernel met an unknown one."""
        if not self._placed:
            return
        unknown = self.walker.counters[Counter.UNKNOWN_THREAD]
        if unknown == self._unknown:
            return
        self._unknown = unknown
        for pid in self._placed.keys() & self._rubies.keys():
            with suppress(NoSuchTarget):
                self._rubies[pid].find_threads()
                self._place(self._rubies[pid])

    def stop(self) -> None:
        """Stop walking stacks. ``settle`` still returns the collected ones."""
        if self.events is not None:
            self.events.finish(self._statistics, self._notes)
        self.walker.stop()
        self._stopped = time.monotonic_ns()

    def collect(self, add: Add, most: int | None = None) -> bool:
        """Name the stacks that the kernel sent.

        Call this ten times per second, or fifty times while the program replaces code,
        because replaced code may be freed soon.

        If each sample is kept, ``add`` gets it at once. In modes with run time,
        ``settle`` adds all samples in order of time instead.

        Args:
            add: Receives the samples.
            most: Maximum number of stacks to name; None: no limit.

        Returns:
            True if ``most`` was reached, so that more stacks may follow.
        """
        self._find_unknown()
        stacks = list(islice(self.walker.records(), most))
        whole = [*self._unnamed, *(one for one in stacks if one.frames)]
        for pid, ruby in self._rubies.items():
            self._name(ruby, [one for one in whole if one.pid == pid])
        # A child may end before the next batch: name its stacks when it is attached.
        unnamed = [one for one in whole if one.pid not in self._rubies]
        self._unnamed = unnamed[-_MOST_UNCHECKED:]
        is_full = len(self._unchecked) > _MOST_UNCHECKED
        if self._options.each or self.is_changing or is_full:
            self._check()
        for stack in stacks:
            if stack.frames and stack.pid not in self._rubies:
                self._seen[stack.key] = stack
            if self._options.each:
                self._take_one(stack, add)
        return len(stacks) == most

    def _take_one(self, stack: WalkedStack, add: Add) -> None:
        is_tick = self._is_tick(stack)
        weight = stack.weight if is_tick else self._told.rest(stack)
        if not weight:
            return
        one = stack._replace(weight=weight)
        if self._weighing.has_run_time:
            self._put_aside.append(one)
        else:
            self._add(one, add)

    def _name(self, ruby: RubyProcess, stacks: Sequence[WalkedStack]) -> None:
        """Name stacks. Their code must be checked afterwards."""
        if not stacks:
            return
        ruby.vm.begin_naming()
        self._unchecked += stacks
        with suppress(NoSuchTarget):
            stacks = ruby.vm.with_code(stacks)
        self._resolve(ruby, stacks)
        with suppress(NoSuchTarget):
            # Even if nothing changes: this records since when code is known.
            late = ruby.vm.without_late_code(stacks)
            while late and self.is_changing:
                self._resolve(ruby, late)
                late = ruby.vm.without_late_code(late)

    def _resolve(self, ruby: RubyProcess, stacks: Iterable[WalkedStack]) -> None:
        for stack in stacks:
            self._seen[stack.key] = self._resolved(ruby, stack)

    def _check(self) -> None:
        """Check whether the code of stacks is unchanged since they were named.

        If not, name the stacks again, and check more often, because the program
        replaces code. If the code differs each time, the stacks are unresolved.
        """
        for _ in range(_TRIES):
            stacks, self._unchecked = self._unchecked, []
            for pid, ruby in self._rubies.items():
                own = [stack for stack in stacks if stack.pid == pid]
                if own and not self._has_same_code(ruby, own):
                    self._changing_until = time.monotonic() + _CHANGING_SECONDS
                    self._name(ruby, own)
            if not self._unchecked:
                return
        for stack in self._unchecked:
            thread = self._rubies[stack.pid].thread_at(stack.thread, stack.tid)
            self._seen[stack.key] = self._unresolved(stack, thread)
        self._unchecked = []

    def _has_same_code(self, ruby: RubyProcess, stacks: list[WalkedStack]) -> bool:
        if ruby.has_executed:
            return True  # its memory contains another program
        try:
            stacks = ruby.vm.with_code(stacks)
            return ruby.vm.has_same_code(one.frames for one in stacks if one.frames)
        except NoSuchTarget:
            return True  # data that was read from the live process is valid

    def settle(self, add: Add) -> None:
        """Once per second, pass ``add`` a sample of each stack since the last call."""
        self.collect(add)
        self._older, self._before, self._seen = self._before, self._seen, {}
        counts, still = self.walker.counts(), self._still()
        ticks = [stack for stack in counts if self._is_tick(stack)]
        over = [stack for stack in counts if not self._is_tick(stack)]
        # List the due stacks before collecting: some intervals end meanwhile.
        due = [*over, *self._parts(still)] if self._options.each else []
        self.collect(add)
        self._check()
        if not self._options.each:
            due += self._open.due(over, still)
        if self._weighing.has_run_time:
            due = self._weighed([*due, *ticks, *self._put_aside])
            self._put_aside.clear()
        kept = self._run_times.last_ticks
        if self._weighing.has_switches:
            kept += [*over, *still]
        self._keep(kept)
        held, self._held = self._held, []
        for seen, stack in held:
            self._add_seen(seen, stack, add)
        for stack in due:
            self._add(stack, add)
        if self._stopped and self._weighing.has_run_time:
            self._add_not_sampled(add)
        self._count()

    def _is_tick(self, stack: WalkedStack) -> bool:
        """Return whether the stack represents run time."""
        return self._weighing.has_run_time and stack.off_cpu is None

    def _weighed(self, stacks: list[WalkedStack]) -> list[WalkedStack]:
        """Return stacks in order of time; the ticks have their share of run time."""
        period, ran = self.walker.period_ns, thread_run_times.reader_of(self._rubies)
        found = [stack for stack in stacks if not self._is_tick(stack)]
        batch: dict[ThreadId, list[tuple[WalkedStack, int]]] = {}
        for stack in stacks:
            if self._is_tick(stack):
                one = stack._replace(ticks=stack.weight // period)
                batch.setdefault((stack.pid, stack.tid), []).append((one, stack.weight))
        for stack, weight in self._run_times.weigh(batch, ran):
            found.append(stack._replace(weight=weight))
        for stack, weight in self._run_times.rest(ran, bool(self._stopped)):
            now = time.monotonic_ns()
            found.append(stack._replace(weight=weight, ticks=0, time_ns=now))
        return sorted(found, key=_seen_at)

    def _add_not_sampled(self, add: Add) -> None:
        now = time.monotonic_ns() + self.wall_offset
        for sample in thread_run_times.not_sampled(self._run_times, self._rubies, now):
            add(sample)

    def _parts(self, still: list[WalkedStack]) -> list[WalkedStack]:
        """Return the new parts of open intervals; in mode gvl, only after ``stop``."""
        if self._is_of_gvl and not self._stopped:
            return []
        return self._told.tell(still)

    def _keep(self, stacks: list[WalkedStack]) -> None:
        """Keep stacks for later epochs.

        Frames are sent when an interval begins. The interval may end an epoch later,
        or, between the two readings of ``settle``, two. A thread may be renamed
        meanwhile.
        """
        for stack in stacks:
            ruby = self._rubies.get(stack.pid)
            seen = self._known(stack.key)
            if isinstance(seen, Sample) and ruby is not None:
                thread = ruby.listed_thread(stack.thread, stack.tid) or seen.thread
                seen = seen._replace(thread=thread)
            if seen is not None:
                self._seen.setdefault(stack.key, seen)

    def _known(self, key: bytes) -> _Seen | None:
        return self._seen.get(key) or self._before.get(key) or self._older.get(key)

    def _still(self) -> list[WalkedStack]:
        """Return the intervals that are still open."""
        if not self._weighing.has_switches:
            return []
        return self.walker.open_intervals(self._stopped)

    def _count(self) -> None:
        counters, ended = self.walker.counters, self._stopped or time.monotonic_ns()
        failed, statistics = 0, self._statistics
        for loss, name in {**_LOSSES, **_NOT_WALKED}.items():
            setattr(statistics, name, counters[loss])
            failed += counters[loss]
        statistics.failed += failed - self._failed
        self._failed = failed
        if self._weighing.has_ticks:
            statistics.rounds = round((ended - self._started) * statistics.rate / 1e9)
        if self._weighing is not Weighing.RUN_TIME and not self._options.each:
            statistics.samples = self.seen
        statistics.ended_ns = ended + self.wall_offset

    def _resolved(self, ruby: RubyProcess, stack: WalkedStack) -> Sample:
        try:
            return self._named(ruby, stack)
        except NoSuchTarget:
            return self._ended(stack)

    def _named(self, ruby: RubyProcess, stack: WalkedStack) -> Sample:
        assert stack.frames is not None
        named, flags = ruby.vm.named(stack.frames, stack.collecting)
        if stack.is_cut:
            flags |= SampleFlags.TRUNCATED
        thread = ruby.thread_at(stack.thread, stack.tid)
        return self._sample(stack, thread, named, flags)

    def _sample(
        self, stack: WalkedStack, thread: RubyThread, named: Stack, flags: SampleFlags
    ) -> Sample:
        if self._kernel_frames is not None and stack.kernel_frames:
            is_tick = self._weighing.has_ticks and stack.off_cpu is None
            add = self._kernel_frames.add_frames
            named = add(named, stack.kernel_frames, is_tick)
        at = stack.time_ns + self.wall_offset
        return Sample(at, thread, ThreadState.RUNNING, named, 1, flags, stack.fiber)

    def _add(self, stack: WalkedStack, add: Add) -> None:
        """Add a sample of a stack with a weight; its frames were sent before."""
        seen = self._known(stack.key)
        if seen is not None:
            self._add_seen(seen, stack, add)
        else:  # the frames were dropped, and their loss was counted
            self._emit(self._unresolved(stack), stack, add)

    def _add_seen(self, seen: _Seen, stack: WalkedStack, add: Add) -> None:
        if isinstance(seen, WalkedStack):  # of a child that was not attached
            ruby = self._rubies.get(stack.pid)
            if ruby is not None:
                seen = self._resolved(ruby, seen)
            elif len(self._held) < _MOST_HELD:
                self._held.append((seen, stack))
                return
            else:
                seen = self._unresolved(stack)
        self._emit(seen, stack, add)

    def _emit(self, sample: Sample, stack: WalkedStack, add: Add) -> None:
        state, shown = ThreadState.RUNNING, sample.stack
        if stack.off_cpu is not None:
            shown, state = self._off_cpu.of(shown, stack.off_cpu)
        if self._is_of_gvl:
            self._has_weight = True  # also if asleep: it keeps the GVL from others
        elif state is ThreadState.SLEEPING and not self._options.idle:
            return
        if self._is_tick(stack) and not stack.ticks:
            sample = sample._replace(flags=SampleFlags.RUN_TIME)
        at, weight = stack.time_ns + self.wall_offset, stack.weight
        add(sample._replace(state=state, stack=shown, weight=weight, time_ns=at))
        if stack.ticks:
            self._statistics.repeat(stack.ticks - 1, sample.flags)
        elif self._event_weight:
            self._statistics.flag(sample.flags, weight // self._event_weight - 1)

    def add_ended(self, is_alive: Callable[[int], bool], add: Add) -> None:
        """Add samples without names for processes that ended before they were read."""
        self._unnamed = [one for one in self._unnamed if is_alive(one.pid)]
        held, self._held = self._held, []
        for seen, stack in held:
            if is_alive(stack.pid):
                self._held.append((seen, stack))
            else:
                self._emit(self._ended(stack), stack, add)

    def _unresolved(
        self, stack: WalkedStack, thread: RubyThread | None = None
    ) -> Sample:
        thread = thread or RubyThread(stack.pid, stack.tid, stack.thread, "")
        return self._sample(stack, thread, _GONE, SampleFlags.UNRESOLVED)

    def _ended(self, stack: WalkedStack) -> Sample:
        """Return a sample of a stack whose process ended before it was read."""
        flags = SampleFlags.UNRESOLVED | SampleFlags.ENDED
        return self._unresolved(stack)._replace(flags=flags)

    def close(self) -> None:
        if self.events is not None:
            self.events.close()
        self.walker.close()


def _seen_at(stack: WalkedStack) -> int:
    return stack.time_ns


def _offsets() -> dict[str, int]:
    """Return field offsets; raise NoBtf, or BpfError on an unsuitable machine."""
    if platform.machine() != "x86_64":
        raise BpfError(f"the kernel cannot walk stacks on {platform.machine()}")
    if not host_pid_namespace():
        raise BpfError(
            "this is a container's pid namespace, and the kernel uses other pids",
            USE_HOST_PIDS,
        )
    return Btf.load().known_offsets(_OFFSETS)
