"""A Ruby process whose stacks are read: its VM, memory, and threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from rbtrace_py.aggregate.elapsed_times import CpuTimes
from rbtrace_py.errors import (
    NoSuchTarget,
    RbtraceError,
    UnreadableMemory,
    VmNotStarted,
)
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process, inner_id, parse_status
from rbtrace_py.linux.ptrace.pause import paused
from rbtrace_py.linux.tasks import Tasks
from rbtrace_py.model.stack_walk import HeldGvl
from rbtrace_py.model.stacks import RubyThread, Sample, ThreadState
from rbtrace_py.rubyvm.attach import Attached, attach, check_zjit
from rbtrace_py.rubyvm.native_ids import timer_thread
from rbtrace_py.rubyvm.saved import SavedLayout
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.vm import GATHERED_AT_ONCE, RubyVM, Walked
from rbtrace_py.rubyvm.waits.calls import kind_of_call
from rbtrace_py.rubyvm.waits.gvls import Gvls

_SECONDS_BETWEEN_CHECKS = 0.9
"""Seconds between checks of the code that was read from the target."""

_SECONDS_BETWEEN_LISTS = 1.0
"""Maximum seconds between two lists of all threads, if no change is noticed."""

_LISTING_SHARE = 0.1
"""Maximum share of time for lists that are read because threads start and end."""

_TIMER_TRIES = 100
"""Number of pauses before which to look for the timer thread. It is recognized only
while it waits."""

_YOUNG_SECONDS = 2.0
"""Seconds in which a process's Ruby may not be fully initialized."""


class SamplingMode(str, Enum):
    """Modes: which threads are sampled."""

    CPU = "cpu"
    """Threads that are on a CPU or runnable, also when their stacks are read."""
    WALL = "wall"
    """All threads, with their states."""
    OFFCPU = "offcpu"
    """Threads that leave a CPU, weighted by off-CPU time. BPF engine only."""
    GVL = "gvl"
    """Threads that hold the GVL, according to the VM."""
    EVENT = "event"
    """Threads that an event occurs in, at each event. BPF engine only."""


MEMORY_MODES = (SamplingMode.CPU, SamplingMode.WALL, SamplingMode.GVL)
"""Modes of the memory engine."""
KERNEL_MODES = (SamplingMode.OFFCPU, SamplingMode.EVENT)
"""Modes that only the BPF engine has."""

_Known = tuple[VmThread, RubyThread]
"""A thread as listed by the VM, and as shown."""


class RubyProcess(Closing):
    """One Ruby process.

    Args:
        process: The process. The caller closes it.
        ruby_version: Version to use instead of the detected one.
        saved: Layout from a file.

    Attributes:
        version: Version of its Ruby.
        notes: Notes for the user, one per line.
        broken_refreshes: Consecutive refreshes between which no stack was readable.
        stopped_ns: Total time that we stopped it, in ns.

    Raises:
        VmNotStarted: Its Ruby is not fully initialized yet.
        RbtraceError: As ``rubyvm.attach`` raises.
    """

    def __init__(
        self,
        process: Process,
        ruby_version: str | None = None,
        saved: SavedLayout | None = None,
    ) -> None:
        self.process = process
        self.broken_refreshes = 0
        self.stopped_ns = 0
        self._program = process.program
        attached, self._tids, self.vm = open_vm(process, ruby_version, saved)
        if attached.symbols is None and process.seen < _YOUNG_SECONDS:
            # Names that are missing now would stay missing. The age of the process
            # does not help: it may have started as another program.
            raise VmNotStarted(
                f"the Ruby of process {process.pid} is still starting",
                "Try again in a moment",
            )
        self._attached = attached
        self.version = attached.layout.version
        self.notes = attached.notes
        self._tasks = Tasks(process)
        self._threads: list[_Known] = []
        self._by_tid: dict[int, _Known] = {}
        self._last_by_tid: dict[int, RubyThread] = {}
        self._by_address: dict[int, _Known] = {}
        self._sleep_when_read: dict[int, tuple[int, bytes] | None] = {}  # by address
        self._has_moving = False
        self._listing: list[int] = []
        self._listed_ns = self._listing_ns = 0
        self._timer = self._timer_tries = 0
        self._checked_ns = time.monotonic_ns()
        self._failed = self._lost = self._read = 0
        self.refresh()

    def refresh(self) -> None:
        """Update the list of threads. Call this several times per second.

        The VM's list is read if the kernel's list differs from the last one, if a stack
        was unreadable, and once per second.

        Raises:
            UnknownRuby: Its stacks can no longer be trusted.
        """
        check_zjit(self.process, self.vm.memory, self._attached)
        is_broken = self._lost > 0 and self._read == 0
        is_doubtful = self._lost > 0 or self.broken_refreshes > 0
        self._lost = self._read = 0
        listing = self._tasks.refresh()
        since = time.monotonic_ns() - self._listed_ns
        if (
            is_doubtful
            or listing != self._listing
            or since >= _SECONDS_BETWEEN_LISTS * 1e9
        ):
            if listing != self._listing:
                self._timer_tries = 0
            self._listing = listing
            self._tids.take(listing)
            ended = self._last_by_tid.keys() - listing
            self._last_by_tid = {
                tid: thread
                for tid, thread in self._last_by_tid.items()
                if tid not in ended
            }
            is_broken |= not self._list_threads()
        self.broken_refreshes = self.broken_refreshes + 1 if is_broken else 0

    @property
    def has_executed(self) -> bool:
        """True if it executed another program, which may use the same addresses."""
        program = self.process.program
        return bool(program) and program != self._program

    def _list_threads(self) -> bool:
        """Read the VM's list of threads; return False if it is unreadable.

        A thread keeps its RubyThread while it is the same. The RubyThread of a moving
        (M:N) thread has no kernel thread id.
        """
        start = time.monotonic_ns()
        try:
            found = self.vm.threads()
        except UnreadableMemory:
            return False
        finally:
            self._listed_ns = time.monotonic_ns()
            self._listing_ns = self._listed_ns - start
        same = {_identity(old): thread for old, thread in self._threads}
        self._threads = [
            (one, same.get(_identity(one)) or self._named(one)) for one in found
        ]
        self._by_address = {one.address: (one, thread) for one, thread in self._threads}
        self._has_moving = any(one.is_moving for one in found)
        self._sleep_when_read = {
            address: sleep
            for address, sleep in self._sleep_when_read.items()
            if address in self._by_address
        }
        self._place([self._tids.of(one) for one in found])
        return True

    def _place(self, tids: list[int | None]) -> None:
        """Record which kernel threads the listed threads are on."""
        placed = zip(tids, self._threads, strict=True)
        self._by_tid = {tid: known for tid, known in placed if tid is not None}
        self._tid_of = {one.address: tid for tid, (one, _) in self._by_tid.items()}
        for tid, (_, thread) in self._by_tid.items():
            self._last_by_tid[tid] = thread

    def _find_moving(self) -> None:
        """Find the kernel threads of M:N threads that have moved since the listing."""
        ones = [one for one, _ in self._threads]
        try:
            now = self.vm.tids(ones)
        except UnreadableMemory:
            self._list_threads()  # one of them has ended
            return
        moved = zip(ones, now, strict=True)
        self._place([self._tids.of(one._replace(tid=tid)) for one, tid in moved])

    def _may_list(self) -> bool:
        """Return whether a list is due; listing many threads takes long."""
        since = time.monotonic_ns() - self._listed_ns
        return since * _LISTING_SHARE >= self._listing_ns

    def _named(self, thread: VmThread) -> RubyThread:
        tid = None if thread.is_moving else self._tids.of(thread)
        return ruby_thread(self.process.pid, tid, thread)

    @property
    def tids(self) -> dict[int, int]:
        """Addresses of the threads that have a kernel thread, by its id."""
        return {tid: one.address for tid, (one, _) in self._by_tid.items()}

    @property
    def threads_by_tid(self) -> dict[int, RubyThread]:
        """The thread that each kernel thread ran last, by kernel thread id.

        Before 3.3, Ruby keeps the kernel thread of an ended thread for the next one.
        """
        return dict(self._last_by_tid)

    def find_threads(self) -> None:
        """List threads that started since the last list, but not too often."""
        if self._may_list():
            self._tids.refresh()
            self._list_threads()

    def thread_at(self, address: int, tid: int) -> RubyThread:
        """Return the thread at an address that the kernel thread ``tid`` ran.

        A thread that ended before it was listed has no name.
        """
        found = self.listed_thread(address, tid)
        if found is None and self._may_list():
            with suppress(NoSuchTarget):  # the process ended after its stack was read
                self._list_threads()
            found = self.listed_thread(address, tid)
        if found is None:
            found = RubyThread(self.process.pid, tid, address, "")
        return found

    def listed_thread(self, address: int, tid: int) -> RubyThread | None:
        """Return the thread like ``thread_at``, or None if it is not listed."""
        one, thread = self._by_address.get(address, (None, None))
        if one is None or not (one.is_moving or self._tid_of.get(address) == tid):
            return None
        return thread

    def held_gvl(self, address: int) -> HeldGvl | None:
        """Return the GVL that the thread at an address holds; None: not listed."""
        one, _ = self._by_address.get(address, (None, None))
        return None if one is None else Gvls(self.vm.values).of_holder(one)

    @property
    def threads(self) -> list[RubyThread]:
        """All threads, the main thread first."""
        return [thread for _, thread in self._threads]

    @property
    def has_moving_threads(self) -> bool:
        """True if there are M:N threads, which run on any free kernel thread."""
        return self._has_moving

    def kernel_thread_of(self, thread: RubyThread) -> int | None:
        """Return the id of the kernel thread that a thread was on in the last pass."""
        return self._tid_of.get(thread.address)

    def cpu_ns(self, thread: RubyThread) -> int | None:
        """Return the CPU time of a thread in ns; None: unknown."""
        return None if thread.tid is None else self._tasks.cpu_ns(thread.tid)

    def all_times(self) -> dict[int, CpuTimes]:
        """Return the times of each kernel thread, by its id."""
        found = ((tid, self.times(tid)) for tid in self._tasks.refresh())
        return {tid: times for tid, times in found if times is not None}

    def times(self, tid: int) -> CpuTimes | None:
        """Return the times of a kernel thread; None: it has ended."""
        found = self._tasks.times(tid)
        return None if found is None else CpuTimes(*found)

    def samples(self, mode: SamplingMode, pause: bool = False) -> list[Sample]:
        """Take one sampling pass over the threads.

        Args:
            mode: Threads to sample.
            pause: Stop the process while its stacks are read.

        Returns:
            The samples. Unreadable stacks count as failed.

        Raises:
            NoSuchTarget: The process has ended.
            NotPermitted, RbtraceError: The process is unreadable or does not stop.
                The samples count as failed.
        """
        now = time.monotonic_ns()
        if now - self._checked_ns >= _SECONDS_BETWEEN_CHECKS * 1e9:
            self._checked_ns = now
            self.vm.revalidate()
        if self.vm.has_other_threads() and self._may_list():
            # A thread may live for less than the time between two refreshes.
            self._list_threads()
        if self._has_moving and mode is not SamplingMode.GVL:
            self._find_moving()
        wanted, running = self._threads, None
        if mode is SamplingMode.CPU:
            running = self._tasks.running(self._by_tid)
            wanted = [self._by_tid[tid] for tid in running]
            if len(wanted) == 1 and not pause:
                return self._only(wanted[0])
        if not wanted:
            return []
        try:
            walks, running, asleep = self._walk(wanted, running, pause)
        except NoSuchTarget:
            raise
        except RbtraceError:
            self._lose(len(wanted))
            raise
        if mode is SamplingMode.WALL:
            walks = self._with_waiters(wanted, walks)
        return self._taken(mode, wanted, walks, running, asleep)

    def _walk(
        self, wanted: list[_Known], running: set[int] | None, pause: bool
    ) -> tuple[list[Walked | None], set[int], frozenset[int] | None]:
        """Return stacks, the ids of threads on a CPU, and with ``pause`` of sleepers.

        Query the kernel once per thread, just before the read. With two queries, a
        short run would count if either query met it, and would seem longer.

        ``running`` has the ids of threads on a CPU. If None, query the kernel.
        """
        if pause:
            if running is None:
                running = self._tasks.running(self._tids_of(wanted))
            with paused(self.process, spared=self._timer_threads()) as pausing:
                walks = self._stacks(wanted)
            self.stopped_ns += pausing.stopped_ns
            return walks, running - pausing.asleep, pausing.asleep
        if running is not None:
            return self._stacks(wanted), running, None
        walks, running = [], set()
        for start in range(0, len(wanted), GATHERED_AT_ONCE):
            some = wanted[start : start + GATHERED_AT_ONCE]
            running |= self._tasks.running(self._tids_of(some))
            walks += self._new_stacks(some)
        return walks, running, None

    def _timer_threads(self) -> set[int]:
        """Return the thread that gives other threads the GVL, which runs no Ruby code.

        If it were paused 100 times per second, no thread would ever lose the GVL.
        """
        if self._timer not in self._listing:
            self._timer = 0
            if self._timer_tries < _TIMER_TRIES:  # it may run at the moment
                self._timer_tries += 1
                self._timer = timer_thread(self.process, self._attached.data) or 0
        return {self._timer} if self._timer else set()

    def _new_stacks(self, some: list[_Known]) -> list[Walked | None]:
        """Return stacks; read those that may have changed since the last pass."""
        sleeps = [self._sleep_of(one) for one, _ in some]
        walks = [
            self.vm.last_sample(one)
            if sleep is not None and self._sleep_when_read.get(one.address) == sleep
            else None
            for (one, _), sleep in zip(some, sleeps, strict=True)
        ]
        unread = [place for place, walked in enumerate(walks) if walked is None]
        if unread:
            read = self._stacks([some[place] for place in unread])
            for place, walked in zip(unread, read, strict=True):
                walks[place] = walked
                self._sleep_when_read[some[place][0].address] = sleeps[place]
        return walks

    def _sleep_of(self, one: VmThread) -> tuple[int, bytes] | None:
        """Return what identifies the sleep of a thread; None: it may run."""
        tid = self._tid_of.get(one.address)
        if tid is None or one.is_moving:
            return None
        token = self._tasks.sleep_token(tid)
        return (tid, token) if token else None

    def _tids_of(self, some: list[_Known]) -> list[int]:
        found = (self._tid_of.get(one.address) for one, _ in some)
        return [tid for tid in found if tid is not None]

    def _stacks(self, wanted: list[_Known]) -> list[Walked | None]:
        if len(wanted) == 1:
            return [self.vm.sample(wanted[0][0])]
        return self.vm.sample_all([one for one, _ in wanted])

    def _with_waiters(
        self, wanted: list[_Known], walks: list[Walked | None]
    ) -> list[Walked | None]:
        """Return walks in which threads that queue for the GVL have state WAITING.

        After a sleep or a system call, the VM's status of such a thread still says that
        it sleeps. After a thread yields the GVL, the VM says that the thread runs,
        until the next one gets a CPU.
        """
        others = [
            one
            for (one, _), walked in zip(wanted, walks, strict=True)
            if walked is not None and walked.state is not ThreadState.WAITING
        ]
        queued = Gvls(self.vm.values).waiters(others)
        return [
            walked._replace(state=ThreadState.WAITING)
            if walked is not None and one.address in queued
            else walked
            for (one, _), walked in zip(wanted, walks, strict=True)
        ]

    def _taken(
        self,
        mode: SamplingMode,
        wanted: list[_Known],
        walks: list[Walked | None],
        running: set[int],
        asleep: frozenset[int] | None,
    ) -> list[Sample]:
        """Return samples of the stacks that were read; count the others as failed."""
        now = time.time_ns()
        found = []
        lost = []
        for (one, thread), walked in zip(wanted, walks, strict=True):
            if walked is None:
                lost.append(one)
                continue
            stack, flags, fiber, state = walked
            if not self._is_wanted(mode, one, walked, asleep):
                continue
            tid = self._tid_of.get(one.address)
            is_running = None if tid is None else tid in running
            if asleep is not None and state is ThreadState.RUNNING and tid is not None:
                is_running = tid not in asleep  # also if it just got the GVL
            if not _was_woken(walked):
                state = state_of(state, is_running)
            found.append(Sample(now, thread, state, stack, 1, flags, fiber))
        self._read += len(wanted) - len(lost)
        if lost:
            self._lose(self._alive(lost))
        return found

    def _is_wanted(
        self,
        mode: SamplingMode,
        one: VmThread,
        walked: Walked,
        asleep: frozenset[int] | None,
    ) -> bool:
        """Return whether the mode includes a thread, by its state during the read.

        ``asleep`` has the threads that slept when they were paused; None: not paused.
        After a pause, all threads are runnable, which means nothing.
        """
        if mode is SamplingMode.GVL:
            return walked.state is ThreadState.RUNNING
        if mode is SamplingMode.WALL:
            return True
        if asleep is not None:
            is_awake = self._tid_of.get(one.address) not in asleep
            return is_awake and not _was_woken(walked)
        return not self._sleeps(one, walked)

    def _sleeps(self, one: VmThread, walked: Walked) -> bool:
        """Return whether a thread left its CPU before its stack was read.

        Query the kernel again if the VM says that the thread does not run Ruby. A
        thread that works without the GVL is still on a CPU.
        """
        if walked.state is ThreadState.RUNNING:
            return False
        if _was_woken(walked):
            return True
        tid = self._tid_of.get(one.address)
        if one.is_moving:
            self._find_moving()  # another thread may run there
            if tid != self._tid_of.get(one.address):
                return True
        return tid is not None and not self._tasks.running((tid,))

    def _lose(self, stacks: int) -> None:
        self._lost += stacks
        self._failed += stacks

    def _alive(self, threads: list[VmThread]) -> int:
        """Return how many threads have started and not ended; others have no stack."""
        begun = [thread for thread in threads if self.vm.has_stack(thread)]
        if not begun or not self._may_list() or not self._list_threads():
            return len(begun)
        listed = {one.address for one, _ in self._threads}
        return sum(thread.address in listed for thread in begun)

    def _only(self, known: _Known) -> list[Sample]:
        """Sample the only thread that is on a CPU: the fast path."""
        one, thread = known
        walked = self.vm.sample(one)
        if walked is None:
            self._lose(self._alive([one]))
            return []
        self._read += 1
        stack, flags, fiber, state = walked
        if self._sleeps(one, walked):
            return []
        state = ThreadState.RUNNING
        return [Sample(time.time_ns(), thread, state, stack, 1, flags, fiber)]

    def take_failed(self) -> int:
        """Return the number of unreadable stacks since the last call."""
        failed, self._failed = self._failed, 0
        return failed

    def close(self) -> None:
        """Close descriptors; may be called twice."""
        self._tasks.close()


def _was_woken(walked: Walked) -> bool:
    """Return whether a thread that is runnable for the kernel waits in the VM.

    It was woken and waits for a CPU, or works in the kernel for a moment. As with the
    BPF engine, this is part of the wait.
    """
    if walked.state is not ThreadState.SLEEPING:
        return walked.state is ThreadState.WAITING
    frames = walked.stack.frames
    return bool(frames) and kind_of_call(frames[-1].name) is not None


def _identity(thread: VmThread) -> tuple[object, ...]:
    tid = None if thread.is_moving else thread.tid
    return (thread.address, tid, thread.name, thread.ractor)


def open_vm(
    process: Process, ruby_version: str | None, saved: SavedLayout | None
) -> tuple[Attached, Tids, RubyVM]:
    """Open the VM of a process.

    Args:
        process: The process.
        ruby_version: Version to use instead of the detected one.
        saved: Layout from a file.

    Returns:
        The attached Ruby, the ids of its threads, and the VM.

    Raises:
        RbtraceError: As ``rubyvm.attach`` raises.
    """
    attached = attach(process, ruby_version, saved)
    tids = Tids(process)
    vm = RubyVM(
        ProcessMemory(process.pid, process),
        attached.layout,
        attached.vm_address,
        attached.symbols_address,
        tids.is_known,
        attached.zjit_address,
    )
    return attached, tids, vm


def ruby_thread(pid: int, tid: int | None, thread: VmThread) -> RubyThread:
    """Return a VM's thread as a ``RubyThread``."""
    return RubyThread(
        pid, tid, thread.address, thread.name, thread.ractor, thread.is_main
    )


def state_of(state: ThreadState, on_cpu: bool | None) -> ThreadState:
    """Return a thread's state from the VM's state and ``on_cpu``, if known."""
    if on_cpu:
        return ThreadState.RUNNING
    if on_cpu is False and state is ThreadState.RUNNING:
        # It holds the GVL but sleeps: in a call that does not release the GVL.
        return ThreadState.SLEEPING
    return state


class Tids:
    """Maps kernel thread ids of the target's PID namespace to ids in our namespace."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_foreign = "pid" in process.foreign_namespaces()
        self._ours: dict[int, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the current threads of the process."""
        try:
            tids = self._process.threads()
        except RbtraceError:
            tids = []
        self.take(tids)

    def take(self, tids: Sequence[int]) -> None:
        """Use a list of thread ids of our namespace."""
        if not self._is_foreign:
            self._ours = {tid: tid for tid in tids}
            return
        known = {ours: its for its, ours in self._ours.items()}
        self._ours = {known.get(tid) or self._in_its(tid): tid for tid in tids}

    def _in_its(self, tid: int) -> int:
        """Return the id of ``tid`` in the target's namespace."""
        try:
            status = parse_status(self._process.read(f"task/{tid}/status"))
        except RbtraceError:
            return 0
        return inner_id(status, tid)

    def is_known(self, tid: int) -> bool:
        """Return whether the target has a thread with this id in its namespace."""
        if tid not in self._ours:
            self.refresh()
        return tid in self._ours

    def of(self, thread: VmThread) -> int | None:
        """Return the id of a thread in our namespace; None: unknown.

        In a child of fork, some Rubies (such as 3.1) keep the parent's id of the main
        thread. The main thread forked, so it is the child's first thread.
        """
        tid = None if thread.tid is None else self._ours.get(thread.tid)
        first = self._process.pid
        if tid is None and thread.is_main and first in self._ours.values():
            return first
        return tid
