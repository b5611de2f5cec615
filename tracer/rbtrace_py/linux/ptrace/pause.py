"""Pausing a process, so that reads of its memory are consistent.

PTRACE_SEIZE is unnoticeable: it sends no signal, and if this process dies, the kernel
releases the target. A separate thread is the tracer, because the kernel ties a target
to the thread that seized it and releases the target when that thread ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux.permission import explain_denied
from rbtrace_py.linux.process import Process, gone, parse_stat, parse_status
from rbtrace_py.linux.procfs import read_text
from rbtrace_py.linux.ptrace.restart import was_asleep
from rbtrace_py.linux.ptrace.scheduling import hurry
from rbtrace_py.linux.ptrace.signal_frame import REGISTERS_SIZE, Registers
from rbtrace_py.linux.text import safe_text

_PTRACE_GETREGS = 12
_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
WALL = 0x40000000
"""include/uapi/linux/ptrace.h and wait.h."""

_PEEK = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | WALL


@dataclass(slots=True)
class Pause:
    """The outcome of a pause, complete once the ``paused`` block has ended.

    Attributes:
        stopped_ns: Time from the first thread's stop to the last thread's release.
        threads: Number of threads stopped.
        is_expired: True if the target was released before the block ended.
        asleep: IDs of the threads that slept in a system call when they were stopped.
            The kernel's thread states cannot show this: each pause wakes all threads.
    """

    stopped_ns: int = 0
    threads: int = 0
    is_expired: bool = False
    asleep: frozenset[int] = frozenset()


@contextmanager
def paused(
    process: Process, limit: float = 1.0, spared: Collection[int] = ()
) -> Iterator[Pause]:
    """Stop the threads of a process during the block.

    Signals sent meanwhile are delivered, and a stopped process stays stopped. As at any
    stop, a call such as ``epoll_wait`` ends with EINTR.

    Args:
        process: The process.
        limit: Maximum duration in seconds.
        spared: IDs of threads that keep running.

    Raises:
        NotPermitted: We may not trace the process, or another process traces it.
        NoSuchTarget: The process has ended.
        RbtraceError: A thread did not stop in time.
    """
    tracer = _Tracer(process, limit, spared)
    tracer.start()
    try:
        tracer.ready.wait()
        if tracer.error is not None:
            raise tracer.error
        yield tracer.pause
    finally:
        tracer.done.set()
        join_kernel_thread(tracer)


def join_kernel_thread(tracer: threading.Thread) -> None:
    """Wait until the kernel has ended the thread, which releases all its tracees.

    Python considers a thread ended before the kernel does. Until then, tracees that it
    could not detach from cannot be seized again.
    """
    tracer.join()
    while Path(f"/proc/self/task/{tracer.native_id}").exists():
        time.sleep(0.0001)


@dataclass(slots=True)
class _Held:
    """A seized thread; ``signal`` is delivered when it is released."""

    is_stopped: bool = False
    signal: int = 0


class _Tracer(threading.Thread):
    """Stops the target, waits for ``done`` or the limit, and releases the target."""

    def __init__(self, process: Process, limit: float, spared: Collection[int]) -> None:
        super().__init__(name="rbtrace-pause", daemon=True)
        self.pause = Pause()
        self.ready, self.done = threading.Event(), threading.Event()
        self.error: RbtraceError | None = None
        self._process = process
        self._limit = limit
        self._spared = frozenset(spared)
        self._held: dict[int, _Held] = {}
        self._since = 0

    def run(self) -> None:
        hurry()
        try:
            self._stop_all()
            self.pause.threads = len(self._held)
            self.pause.asleep = frozenset(filter(_sleeps, self._held))
            self.ready.set()
            left = self._deadline - time.monotonic()
            self.pause.is_expired = not self.done.wait(max(0.0, left))
        except RbtraceError as error:
            self.error = error
        except OSError as error:
            self.error = RbtraceError(f"process {self._process.pid}: {error.strerror}")
        finally:
            self._release()
            self.ready.set()

    # ------------------------------------------------------------------- stop

    def _stop_all(self) -> None:
        """Seize and stop all threads, including those created meanwhile."""
        self._deadline = time.monotonic() + self._limit
        while time.monotonic() < self._deadline:
            left = self._spared.union(self._held)
            fresh = [tid for tid in self._process.threads() if tid not in left]
            seized = [tid for tid in fresh if self._seize(tid)]
            if not seized and self._held:
                return
            if not seized:
                # All remaining threads are exiting.
                if not self._process.alive():
                    raise gone(self._process.pid)
                time.sleep(0.0001)
                continue
            self._since = self._since or time.monotonic_ns()
            for tid in seized:
                ptrace(_PTRACE_INTERRUPT, tid, 0, 0)
            self._wait_for(seized)
        raise RbtraceError(
            f"process {self._process.pid} could not be paused within {self._limit:g} s",
            "Try again: it keeps creating threads, or is about to exit",
        )

    def _seize(self, tid: int) -> bool:
        """Seize a thread; return False if it has ended."""
        code = ptrace(_PTRACE_SEIZE, tid, 0, 0)
        if code == 0:
            self._held[tid] = _Held()
            return True
        if code == errno.ESRCH:
            return False
        if self._has_ended(tid):
            return False
        raise seize_refused(self._process, tid)

    def _has_ended(self, tid: int) -> bool:
        """Return whether a thread has ended; unreaped ones cannot be seized either."""
        try:
            return parse_stat(self._process.read(f"task/{tid}/stat")).state in "ZX"
        except RbtraceError:
            return True

    def _wait_for(self, tids: list[int]) -> None:
        pause = 0.00001
        waiting = [tid for tid in tids if not self._has_stopped(tid)]
        while waiting:
            if time.monotonic() > self._deadline:
                raise RbtraceError(
                    f"thread {waiting[0]} of process {self._process.pid} did not stop"
                    f" within {self._limit:g} s",
                    "Try again, or without --pause: it may be deep in the kernel, or"
                    " frozen (docker pause)",
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.001)
            waiting = [tid for tid in waiting if not self._has_stopped(tid)]

    def _has_stopped(self, tid: int) -> bool:
        """Return whether a thread has stopped or ended."""
        try:
            found = os.waitid(os.P_PID, tid, _PEEK)
        except ChildProcessError:
            self._held.pop(tid, None)
            return True
        if found is None:
            return False
        if found.si_code not in (os.CLD_TRAPPED, os.CLD_STOPPED):
            self._reap(tid)
            return True
        _, status = os.waitpid(tid, WALL | os.WNOHANG)
        held = self._held[tid]
        held.is_stopped = True
        # Without an event, it is about to receive a signal, which is passed on.
        held.signal = os.WSTOPSIG(status) if status >> 16 == 0 else 0
        return True

    def _reap(self, tid: int) -> None:
        """Reap a thread that ended, but leave the exit code of our child process."""
        del self._held[tid]
        if tid != self._process.pid or not self._is_our_child():
            os.waitpid(tid, WALL | os.WNOHANG)

    def _is_our_child(self) -> bool:
        try:
            return parse_stat(self._process.read("stat")).parent == os.getpid()
        except RbtraceError:
            return False

    # ---------------------------------------------------------------- release

    def _release(self) -> None:
        """Release the stopped threads. The end of this thread releases the others."""
        for tid, held in list(self._held.items()):
            if held.is_stopped and ptrace(_PTRACE_DETACH, tid, 0, held.signal):
                self._collect(tid)
        if self._since:
            self.pause.stopped_ns = time.monotonic_ns() - self._since

    def _collect(self, tid: int) -> None:
        """Reap a thread that was killed while it was held."""
        try:
            found = os.waitid(os.P_PID, tid, _PEEK)
        except ChildProcessError:
            return
        if found is not None and found.si_code != os.CLD_TRAPPED:
            self._reap(tid)


def _sleeps(tid: int) -> bool:
    """Return whether a stopped thread slept in a system call."""
    buffer = ctypes.create_string_buffer(REGISTERS_SIZE)
    if ptrace(_PTRACE_GETREGS, tid, 0, ctypes.addressof(buffer)):
        return False
    return was_asleep(Registers.unpack(buffer.raw))


def seize_refused(process: Process, tid: int) -> RbtraceError:
    """Return why PTRACE_SEIZE failed: another tracer, or missing permission."""
    try:
        status = parse_status(process.read(f"task/{tid}/status"))
    except NoSuchTarget:
        return gone(process.pid)
    tracer = _number(status.get("TracerPid", ""))
    if tracer == 0:
        return explain_denied(process.pid)
    # TracerPid is the ID of a thread. /proc has a folder for it, but does not list it.
    found = parse_status((read_text(f"/proc/{tracer}/status") or "").encode())
    name = f"process {_number(found.get('Tgid', '')) or tracer}"
    if "Name" in found:
        name += f" ({safe_text(found['Name'].encode())})"
    return NotPermitted(
        f"process {process.pid} is traced by {name}",
        "End that tracer first: a process can have only one",
    )


def _number(text: str) -> int:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else 0


def _load() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_long
    return function


_libc_ptrace = _load()


def ptrace(request: int, tid: int, address: int, data: int) -> int:
    """Call ptrace; return 0 or the errno."""
    return ptrace_value(request, tid, address, data)[1]


def ptrace_value(request: int, tid: int, address: int, data: int) -> tuple[int, int]:
    """Call ptrace; return its result, and 0 or the errno."""
    value = _libc_ptrace(request, tid, address, data)
    return value, ctypes.get_errno() if value == -1 else 0
