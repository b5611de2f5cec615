"""``dump``: one read of all threads of a process and their suspended fibers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from rbtrace_py.linux.maps import Mapping as MemoryMapping
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.pause import Pause, paused
from rbtrace_py.linux.resident import resident
from rbtrace_py.linux.tasks import Tasks
from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread, Locals
from rbtrace_py.model.stacks import FrameKind, RubyThread, SampleFlags, ThreadState
from rbtrace_py.model.waits import Waiter
from rbtrace_py.rubyvm.attach import Attached
from rbtrace_py.rubyvm.fibers import Fiber, Fibers
from rbtrace_py.rubyvm.locals import LocalsReader
from rbtrace_py.rubyvm.saved import SavedLayout
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.values import Values
from rbtrace_py.rubyvm.vm import ControlFrame, RubyVM, Walked
from rbtrace_py.rubyvm.waits.ruby_waits import RubyWaits
from rbtrace_py.session.stacks.deadlocks import deadlocks
from rbtrace_py.session.stacks.kernel_waits import KernelWaits
from rbtrace_py.session.stacks.ruby_process import Tids, open_vm, ruby_thread
from rbtrace_py.session.stacks.waits import Seen, Waits

PAUSE_SECONDS = 5.0
"""Maximum seconds to stop a target."""

_TRIES = 3
"""Maximum number of repeated reads."""
_WITHOUT_LOCALS = (FrameKind.GC, FrameKind.MARKER)
_LONG = 0.2
"""Seconds above which a read is not repeated: of many threads, some always continue."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options of a dump.

    Attributes:
        fibers: Read suspended fibers, too.
        pause: Stop the target while it is read.
        ruby_version: Version to use instead of the detected one.
        saved: Layout from a file, which takes precedence.
        locals: Read arguments and local variables.
    """

    fibers: bool = False
    pause: bool = False
    ruby_version: str | None = None
    saved: SavedLayout | None = None
    locals: bool = False


@dataclass(slots=True)
class Stacks:
    """The stacks of a VM: threads with their stacks, and fibers by thread address.

    Attributes:
        threads: Threads with their stacks; None: unreadable.
        fibers: Suspended fibers with their stacks, by thread address.
        control_frames: Control frames of threads and fibers, by address.
        locals: Local variables of threads and fibers, by address.
        notes: Notes for the user, one per line.
    """

    threads: list[tuple[VmThread, Walked | None]]
    fibers: dict[int, list[tuple[Fiber, Walked | None]]]
    control_frames: dict[int, list[ControlFrame]]
    locals: dict[int, Locals] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def read_locals(self, values: Values) -> None:
        """Read the arguments and local variables of all stacks."""
        reader = LocalsReader(values)
        if not reader.can_read:
            self.notes.append("local variables cannot be found in this Ruby")
        for address, frames in self.control_frames.items():
            self.locals[address] = reader.of_stack(frames)

    def locals_of(self, address: int, walked: Walked | None) -> Locals:
        """Return the locals of a stack, if they match the frames that it shows."""
        found = self.locals.get(address, ())
        frames = () if walked is None else walked.stack.frames
        # Frames of the garbage collector and markers of unknown frames have no locals.
        found = (*found, *(() for one in frames if one.kind in _WITHOUT_LOCALS))
        return found if len(found) == len(frames) else ()

    def whole(self, address: int, walked: Walked | None) -> Sequence[ControlFrame]:
        """Return the control frames of a stack, or () if its newest are unknown."""
        if walked is None or walked.flags & SampleFlags.TRIMMED:
            return ()
        return self.control_frames.get(address, ())

    def seen(self) -> list[Seen]:
        """Return the threads, with their states when they were read or listed."""
        return [
            Seen(
                one,
                one.state if walked is None else walked.state,
                one.fiber if walked is None else walked.fiber,
                self.whole(one.address, walked),
                tuple(fiber for fiber, _ in self.fibers.get(one.address, ())),
            )
            for one, walked in self.threads
        ]


def dump(process: Process, options: DumpOptions | None = None) -> Dump:
    """Read all threads of a process.

    Args:
        process: The process.
        options: Options of the dump.

    Returns:
        The threads, with their stacks, waits, and deadlocks.

    Raises:
        NotRuby, UnknownRuby, NotPermitted, NoSuchTarget: As ``rubyvm.attach`` raises.
        UnreadableMemory: The list of threads is unreadable.
    """
    options = options or DumpOptions()
    attached, tids, vm = open_vm(process, options.ruby_version, options.saved)

    # Before a pause: in a pause, the kernel shows each system call as ended.
    kernel = KernelWaits(process, vm.memory, process.threads())
    with Tasks(process) as tasks, _pausing(process, options.pause) as pause:
        reader = _Reader(process, vm, attached, tids, tasks, options)
        found = reader.read(kernel)
        for _ in range(_TRIES):
            if not found.is_torn or found.took > _LONG:
                break
            found = reader.read(KernelWaits(process, vm.memory, process.threads()))
    notes = [*attached.notes, *found.stacks.notes]
    if found.is_torn:
        notes.append(
            "threads continued while they were read, so that their waits may be later"
            " than their stacks; --pause prevents this"
        )
    if pause is not None and pause.is_expired:
        notes.append(
            f"it was resumed after {PAUSE_SECONDS:g} s, before everything was read"
        )
    return Dump(
        pid=process.pid,
        command=" ".join(process.cmdline) or process.comm,
        ruby_version=attached.version.text,
        threads=tuple(found.threads),
        time_ns=found.time_ns,
        stopped_ns=None if pause is None else pause.stopped_ns,
        notes=tuple(notes),
        folder=process.folder,
        deadlocks=found.deadlocks,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """All threads, read once.

    Attributes:
        took: Duration in seconds.
        is_torn: A sleeping thread ran meanwhile, so its wait may be from later.
    """

    time_ns: int
    took: float
    stacks: Stacks
    threads: list[DumpedThread]
    deadlocks: tuple[tuple[Waiter, ...], ...]
    is_torn: bool


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads all threads of a process, any number of times."""

    process: Process
    vm: RubyVM
    attached: Attached
    tids: Tids
    tasks: Tasks
    options: DumpOptions

    def read(self, kernel: KernelWaits) -> _Reading:
        """Read once; ``kernel`` was read just before."""
        now, began = time.time_ns(), time.monotonic()
        ran = {} if self.options.pause else self._cpu_times()
        # The kernel shows a thread that we paused as stopped.
        running = None if self.options.pause else self._running()
        stacks = read_stacks(self.vm, self._fibers, self.options.fibers)
        if self.options.locals:
            stacks.read_locals(self.vm.values)
        waits = Waits(self.vm.values, stacks.seen(), self._known(stacks), kernel)
        threads = self._dumped(stacks, waits, running)
        cycles = _lasting_deadlocks(threads, stacks, waits)
        gone_on = self._gone_on(ran) if ran else set()
        return _Reading(
            now,
            time.monotonic() - began,
            stacks,
            threads,
            tuple(
                cycle
                for cycle in cycles
                if not any(one.thread.tid in gone_on for one in cycle)
            ),
            any(
                one.state is ThreadState.SLEEPING and one.thread.tid in gone_on
                for one in threads
            ),
        )

    def _known(self, stacks: Stacks) -> dict[int, RubyThread]:
        pid, tids = self.process.pid, self.tids
        return {
            one.address: ruby_thread(pid, tids.of(one), one)
            for one, _ in stacks.threads
        }

    def _dumped(
        self, stacks: Stacks, waits: Waits, running: set[int] | None
    ) -> list[DumpedThread]:
        """Describe threads. Without ``running``, the kernel's states are unknown."""
        threads = []
        for one, walked in stacks.threads:
            tid = waits.threads[one.address].tid
            if tid is None or running is None:
                threads.append(dumped(stacks, one, walked, waits))
                continue
            task = self.tasks.state(tid)
            letter = "" if task is None else task.letter
            threads.append(dumped(stacks, one, walked, waits, tid in running, letter))
        return threads

    def _gone_on(self, ran: Mapping[int, int | None]) -> set[int | None]:
        """Return the threads that were on a CPU since ``ran``, or are on one."""
        since = self._cpu_times()
        # The kernel's time of a running thread is up to one tick old.
        return {*(tid for tid in ran if ran[tid] != since.get(tid)), *self._running()}

    def _cpu_times(self) -> dict[int, int | None]:
        return {tid: self.tasks.cpu_ns(tid) for tid in self.process.threads()}

    def _running(self) -> set[int]:
        return self.tasks.running(self.process.threads())

    def _fibers(self) -> Fibers:
        regions = resident(self.process, writable(mappings(self.process)))
        return Fibers(self.vm, self.attached.symbols_address, regions)


def _lasting_deadlocks(
    threads: Sequence[DumpedThread], stacks: Stacks, waits: Waits
) -> tuple[tuple[Waiter, ...], ...]:
    """Return the cycles that still exist when the waits are read once more.

    A running program may lock and unlock while its threads are read one by one.
    """
    found = deadlocks(threads)
    if not found:
        return ()
    frames = {
        one.address: stacks.whole(one.address, walk) for one, walk in stacks.threads
    }
    again = deadlocks(
        [
            replace(
                one,
                wait=waits.of_thread(
                    one.thread.address, one.state, frames[one.thread.address]
                ),
            )
            for one in threads
        ]
    )
    return tuple(cycle for cycle in found if cycle in again)


def _pausing(process: Process, wanted: bool) -> AbstractContextManager[Pause | None]:
    return paused(process, PAUSE_SECONDS) if wanted else nullcontext()


def writable(all_mappings: Sequence[MemoryMapping]) -> list[tuple[int, int]]:
    """Return the (address, size) ranges of writable memory of no file.

    Objects may be there.
    """
    return [
        (one.start, one.end - one.start)
        for one in all_mappings
        if one.is_writable and not one.path.startswith((b"/", b"[v"))
    ]


def read_stacks(
    vm: RubyVM, make_fibers: Callable[[], Fibers], with_fibers: bool
) -> Stacks:
    """Read all threads and fibers; retry those that fail.

    Args:
        vm: The VM.
        make_fibers: Returns the reader of fibers, if it is needed.
        with_fibers: Read all suspended fibers. If False, only read the fibers of
            threads with a fiber scheduler: their waits explain their thread's wait.

    Returns:
        The threads and fibers, without locals.
    """
    found = vm.threads()
    walks: list[Walked | None] = list(vm.sample_all(found))
    for _ in range(_TRIES):
        lost = [place for place, walked in enumerate(walks) if walked is None]
        for place, walked in zip(
            lost, vm.sample_all([found[place] for place in lost]), strict=True
        ):
            walks[place] = walked
    frames = {thread.address: vm.control_frames(thread) for thread in found}
    stacks = Stacks(list(zip(found, walks, strict=True)), {}, frames)
    ruby = RubyWaits(vm.values)
    wanted = [one for one in found if with_fibers or ruby.has_scheduler(one.address)]
    if wanted:
        _read_fibers(stacks, make_fibers(), wanted)
    return stacks


def _read_fibers(stacks: Stacks, fibers: Fibers, threads: Sequence[VmThread]) -> None:
    if not fibers.can_be_read:
        stacks.notes.append("fibers cannot be found in this Ruby")
    suspended = fibers.find(threads)
    for fiber, walked in zip(suspended, fibers.walk(suspended), strict=True):
        stacks.fibers.setdefault(fiber.thread, []).append((fiber, walked))
    stacks.control_frames.update(fibers.control_frames)


def dumped(
    stacks: Stacks,
    thread: VmThread,
    walked: Walked | None,
    waits: Waits,
    on_cpu: bool | None = None,
    letter: str = "",
) -> DumpedThread:
    """Return a thread of ``stacks`` for the dump.

    Args:
        stacks: The stacks of the VM.
        thread: The thread.
        walked: Its stack; None: unreadable.
        waits: The waits of all threads.
        on_cpu: True if the kernel shows the thread on a CPU; None: unknown.
        letter: The kernel's state letter, or an empty string.
    """
    state = waits.state(thread.address, on_cpu)
    frames = stacks.whole(thread.address, walked)
    return DumpedThread(
        thread=waits.threads[thread.address],
        state=state,
        on_cpu=on_cpu,
        kernel_state=letter,
        stack=None if walked is None else walked.stack,
        flags=SampleFlags.CLEAN if walked is None else walked.flags,
        fiber=thread.fiber if walked is None else walked.fiber,
        fibers=tuple(
            _dumped_fiber(stacks, fiber, walked, waits)
            for fiber, walked in stacks.fibers.get(thread.address, [])
        ),
        wait=waits.of_thread(thread.address, state, frames),
        gvl_waiters=waits.gvl_waiters(thread.address),
        locals=stacks.locals_of(thread.address, walked),
    )


def _dumped_fiber(
    stacks: Stacks, fiber: Fiber, walked: Walked | None, waits: Waits
) -> DumpedFiber:
    if walked is None:
        return DumpedFiber(fiber.address, None)
    wait = waits.of_fiber(stacks.whole(fiber.address, walked))
    found = stacks.locals_of(fiber.address, walked)
    return DumpedFiber(fiber.address, walked.stack, walked.flags, wait, found)
