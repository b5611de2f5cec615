"""A process stopped for a moment, so that what is read of it holds together.

PTRACE_SEIZE leaves no trace of itself: no signal is sent, and if we die, however we
die, the kernel lets the target go. A thread of ours of its own is the tracer, as the
kernel ties a target to the thread that seized it, and lets it go when that one ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Iterator
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
    """The outcome of a pause.

    stopped_ns: from the first thread's stop to the last one's release
    threads: how many were stopped
    is_expired: it took too long, and the target was let go before we were done
    asleep: ids of the threads that slept in a system call when they were stopped. The
        kernel's own word is of no use here: each pause wakes all of them
    """

    stopped_ns: int = 0
    threads: int = 0
    is_expired: bool = False
    asleep: frozenset[int] = frozenset()


@contextmanager
def paused(process: Process, limit: float = 1.0) -> Iterator[Pause]:
    """Stop all threads of ``process`` while the block runs, ``limit`` s at most.

    What is sent to it meanwhile reaches it, and one that was stopped stays so. A call
    of ``epoll_wait`` and its like ends with EINTR, as any stop does to it.

    Raises NotPermitted (also if somebody else traces it), NoSuchTarget, RbtraceError
    if a thread does not stop in time. The numbers of the pause stand when the block
    has ended.
    """
    tracer = _Tracer(process, limit)
    tracer.start()
    try:
        tracer.ready.wait()
        if tracer.error is not None:
            raise tracer.error
        yield tracer.pause
    finally:
        tracer.done.set()
        join_wholly(tracer)


def join_wholly(tracer: threading.Thread) -> None:
    """Wait until the kernel has ended the thread, and so let go of all it traced.

    Python says that a thread has ended before that. Until then, what it could not
    detach is still traced by it, and nobody can seize it.
    """
    tracer.join()
    while Path(f"/proc/self/task/{tracer.native_id}").exists():
        time.sleep(0.0001)


@dataclass(slots=True)
class _Held:
    """A thread we seized; ``signal`` is what it gets when it is let go."""

    is_stopped: bool = False
    signal: int = 0


class _Tracer(threading.Thread):
    """Stops, waits until ``done`` or the time is up, lets go."""

    def __init__(self, process: Process, limit: float) -> None:
        super().__init__(name="rbtrace-pause", daemon=True)
        self.pause = Pause()
        self.ready, self.done = threading.Event(), threading.Event()
        self.error: RbtraceError | None = None
        self._process = process
        self._limit = limit
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
        """Seize and stop until no thread is left that is not: they may make more."""
        self._deadline = time.monotonic() + self._limit
        while time.monotonic() < self._deadline:
            fresh = [t for t in self._process.threads() if t not in self._held]
            seized = [tid for tid in fresh if self._seize(tid)]
            if not seized and self._held:
                return
            if not seized:
                # All that are left are on their way out.
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
        """False if it has ended."""
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
        """A dead thread that is not yet collected cannot be seized either."""
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
        """Has it stopped, or ended? Then it is not waited for any more."""
        try:
            found = os.waitid(os.P_PID, tid, _PEEK)
        except ChildProcessError:
            self._held.pop(tid, None)
            return True
        if found is None:
            return False
        if found.si_code not in (os.CLD_TRAPPED, os.CLD_STOPPED):
            self._bury(tid)
            return True
        _, status = os.waitpid(tid, WALL | os.WNOHANG)
        held = self._held[tid]
        held.is_stopped = True
        # No event: it is about to get a signal, which it shall have.
        held.signal = os.WSTOPSIG(status) if status >> 16 == 0 else 0
        return True

    def _bury(self, tid: int) -> None:
        """A thread that ended is ours to collect, but not a child's exit code."""
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
        """Let go of what has stopped; the end of this thread does the others."""
        for tid, held in list(self._held.items()):
            if held.is_stopped and ptrace(_PTRACE_DETACH, tid, 0, held.signal):
                self._collect(tid)
        if self._since:
            self.pause.stopped_ns = time.monotonic_ns() - self._since

    def _collect(self, tid: int) -> None:
        """It was killed while it was held."""
        try:
            found = os.waitid(os.P_PID, tid, _PEEK)
        except ChildProcessError:
            return
        if found is not None and found.si_code != os.CLD_TRAPPED:
            self._bury(tid)


def _sleeps(tid: int) -> bool:
    """Did a stopped thread sleep in a system call?"""
    buffer = ctypes.create_string_buffer(REGISTERS_SIZE)
    if ptrace(_PTRACE_GETREGS, tid, 0, ctypes.addressof(buffer)):
        return False
    return was_asleep(Registers.unpack(buffer.raw))


def seize_refused(process: Process, tid: int) -> RbtraceError:
    """Return why PTRACE_SEIZE failed: another tracer, or missing rights."""
    try:
        status = parse_status(process.read(f"task/{tid}/status"))
    except NoSuchTarget:
        return gone(process.pid)
    tracer = _number(status.get("TracerPid", ""))
    if tracer == 0:
        return explain_denied(process.pid)
    # What is named is the thread that traces: in /proc that is found, not listed.
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
    """0, or the errno."""
    return ptrace_value(request, tid, address, data)[1]


def ptrace_value(request: int, tid: int, address: int, data: int) -> tuple[int, int]:
    """Call ptrace; return its result, and 0 or the errno."""
    value = _libc_ptrace(request, tid, address, data)
    return value, ctypes.get_errno() if value == -1 else 0
