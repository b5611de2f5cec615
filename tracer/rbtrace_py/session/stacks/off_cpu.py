"""The reason why a thread was off the CPU, as a frame on its stack.

The VM contributes the innermost method. The kernel contributes the system call and the
type of the file. A thread waits for the GVL only if it was in the GVL's queue.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from rbtrace_py.linux.system_calls import (
    CALL_NAMES,
    ON_DESCRIPTOR,
    awaited,
    system_call,
)
from rbtrace_py.linux.tasks import is_stopped
from rbtrace_py.model.stack_walk import OffCpu
from rbtrace_py.model.stacks import (
    RUN_QUEUE,
    Frame,
    FrameKind,
    Sample,
    Stack,
    ThreadState,
    without_kernel,
)
from rbtrace_py.model.waits import ON_CPU, WaitKind
from rbtrace_py.rubyvm.waits.calls import kind_of_call
from rbtrace_py.rubyvm.walked_frames import UNRESOLVED
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode

_MOST_STACKS = 1 << 14


class Reason(str, Enum):
    """Reasons to be off the CPU, as shown in reports."""

    RUN_QUEUE = "run queue"
    """The thread was runnable, but another thread had the CPU."""
    STOPPED = "stopped"
    """A signal or a debugger stopped the thread."""
    GVL = "GVL"
    LOCK = "lock"
    QUEUE = "queue"
    CONDITION = "condition variable"
    THREAD = "thread"
    RACTOR = "ractor"
    SLEEP = "sleep"
    CHILD = "child process"
    SOCKET = "socket"
    PIPE = "pipe"
    DISK = "disk"
    IO = "I/O"
    """I/O on another kind of file, or on several descriptors."""
    OTHER = "system call"


_BY_KIND = {
    WaitKind.MUTEX: Reason.LOCK,
    WaitKind.QUEUE: Reason.QUEUE,
    WaitKind.CONDITION: Reason.CONDITION,
    WaitKind.THREAD: Reason.THREAD,
    WaitKind.RACTOR: Reason.RACTOR,
    WaitKind.SLEEP: Reason.SLEEP,
    WaitKind.CHILD: Reason.CHILD,
}
_BY_FILE = {
    stat.S_IFSOCK: Reason.SOCKET,
    stat.S_IFIFO: Reason.PIPE,
    stat.S_IFREG: Reason.DISK,
    stat.S_IFDIR: Reason.DISK,
    stat.S_IFBLK: Reason.DISK,
}

_POLLS = ("poll", "ppoll")
_OF_THREADS = ("futex", "futex_waitv")
_OF_SEVERAL = ("epoll", "io_uring", "io_getevents", "ioctl")
_BY_CALL = {
    **dict.fromkeys(("clone", "clone3", "fork", "vfork"), Reason.CHILD),
    **dict.fromkeys(("wait4", "waitid"), Reason.CHILD),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), Reason.SLEEP),
    **dict.fromkeys((*_OF_THREADS, "flock", "fcntl"), Reason.LOCK),
    **dict.fromkeys(("select", "pselect6"), Reason.IO),
}


def reason_of(off_cpu: OffCpu, stack: Stack) -> Reason:
    """Return why a thread with this stack was off the CPU."""
    if off_cpu.is_ready:
        return Reason.RUN_QUEUE
    if off_cpu.is_stopped:
        return Reason.STOPPED
    if off_cpu.is_queued:
        return Reason.GVL
    frames = without_kernel(stack.frames)
    leaf = frames[-1] if frames else None
    kind = None if leaf is None else kind_of_call(leaf.name)
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    call = "" if off_cpu.call is None else CALL_NAMES.get(off_cpu.call, "")
    if leaf == UNRESOLVED and call in _OF_THREADS:
        return Reason.OTHER  # the unknown method may be a sleep or a queue
    if call in _BY_CALL:
        return _BY_CALL[call]
    action = "poll" if call in _POLLS else ON_DESCRIPTOR.get(call)
    if action is not None:
        of_several = action in _OF_SEVERAL
        return Reason.IO if of_several else _BY_FILE.get(off_cpu.file_type, Reason.IO)
    return Reason.DISK if off_cpu.is_uninterruptible else Reason.OTHER


def waiting_threads(
    ruby: RubyProcess, mode: SamplingMode = SamplingMode.WALL
) -> Iterator[tuple[Sample, OffCpu]]:
    """Yield a sample of each thread that is off the CPU, and the reason.

    Args:
        ruby: The process.
        mode: WALL: all threads; GVL: threads that hold the GVL.
    """
    for sample in ruby.samples(mode):
        tid = sample.thread.tid
        if sample.state is not ThreadState.RUNNING and tid is not None:
            is_queued = sample.state is ThreadState.WAITING
            yield sample, _waits_now(ruby, tid, is_queued)


def _waits_now(ruby: RubyProcess, tid: int, is_queued: bool) -> OffCpu:
    if is_stopped(ruby.process, tid):
        return OffCpu(False, is_queued, False, 0, None, is_stopped=True)
    call = system_call(ruby.process, tid)
    if call is None:
        return OffCpu(False, is_queued, False, 0, None)
    descriptors = awaited(call, ruby.vm.memory).descriptors
    file_type = 0
    if len(descriptors) == 1:
        with suppress(OSError):
            path = f"/proc/{ruby.process.pid}/fd/{descriptors[0][0]}"
            file_type = stat.S_IFMT(os.stat(path).st_mode)
    return OffCpu(False, is_queued, False, file_type, call.number)


_STATES = {
    Reason.RUN_QUEUE: ThreadState.RUNNABLE,
    Reason.GVL: ThreadState.WAITING,
}


class OffCpuStacks:
    """Adds the reason to stacks as the innermost frame. Its cache is bounded."""

    def __init__(self) -> None:
        self._known: dict[tuple[Stack, OffCpu], tuple[Stack, ThreadState]] = {}

    def of(self, stack: Stack, off_cpu: OffCpu) -> tuple[Stack, ThreadState]:
        """Return the stack with the reason on it, and the thread's state."""
        key = (stack, off_cpu)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_STACKS:
                self._known.clear()
            reason = reason_of(off_cpu, stack)
            state = _STATES.get(reason, ThreadState.SLEEPING)
            found = Stack((*stack.frames, _FRAMES[reason])), state
            self._known[key] = found
        return found


def _frame(reason: Reason) -> Frame:
    name = f"({reason.value})"
    return Frame(FrameKind.MARKER, name, name, "", None)


_FRAMES = {reason: _frame(reason) for reason in Reason} | {Reason.RUN_QUEUE: RUN_QUEUE}
WAIT_FRAMES = frozenset(_FRAMES.values())
_REASONS = {frame: reason for reason, frame in _FRAMES.items()}


def part_of(sample: Sample) -> str:
    """Return the reason on a sample's stack, or ``ON_CPU``."""
    frames = sample.stack.frames
    reason = _REASONS.get(frames[-1]) if frames else None
    return ON_CPU if reason is None else reason.value
