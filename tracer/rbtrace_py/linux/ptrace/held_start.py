"""Holds a program that the command starts until the session has attached to it.

The program is seized before it executes anything, and stops at system calls. It is
traced for at most HELD_SECONDS, and never while it executes a program with more
privileges, because the kernel denies them to a traced program. If the tracer dies, the
kernel lets the program continue.
"""

from __future__ import annotations

import os
import queue
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.pause import join_kernel_thread
from rbtrace_py.linux.ptrace.scheduling import hurry
from rbtrace_py.linux.ptrace.signal_frame import Registers
from rbtrace_py.linux.ptrace.tracee import Tracee, TraceeStop

HELD_SECONDS = 2.0

_EXECVE, _EXECVEAT, _PTRACE = 59, 322, 101
_OF_LOADING = frozenset(
    {0, 2, 3, 4, 5, 8, 9, 10, 11, 12, 17, 20, 21, 72, 89, 99, 158, 218}
    | {257, 262, 269, 273, 302, 318, 332, 334, 439}
)
"""Calls of glibc's and musl's dynamic linkers before the program's own code runs.

read, open, close, stat, fstat, lseek, mmap, mprotect, munmap, brk, pread64, writev,
access, fcntl, readlink, sysinfo, arch_prctl, set_tid_address, openat, newfstatat,
faccessat, set_robust_list, prlimit64, getrandom, statx, rseq, faccessat2.
"""
_AT_ENTRY = (1 << 64) - 38
"""-ENOSYS: the value of rax at the entry of a system call on x86-64."""
_CS_64 = 0x33
"""Code segment of a 64-bit program (__USER_CS); only such programs are held."""
_LONGEST_PATH = 4096
_PAGE = 4096
_MOST_SCRIPTS = 5
"""Nested script interpreters, as in the kernel's exec_binprm."""

_LOOK_SECONDS = 0.02
"""Longest time between two checks of ``_is_released``."""

_Started = TypeVar("_Started")
_IsWanted = Callable[[Registers], bool]


class HeldStart:
    """A program that ``start`` starts and ``to_program`` holds.

    A thread traces it, because the kernel ties a traced program to the thread that
    seized it. A program that cannot be traced runs as if it were not held. Until
    ``is_over``, no other code may wait for the process: it would receive a stop instead
    of the exit.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[_IsWanted | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._pid = self._pid_read = self._pid_write = 0
        self._go_read = self._go_write = 0
        self._deadline = 0.0
        self._has_executed = False
        self._calls = self._next_call = 0
        self._has_stopped = self._is_awaited = self._is_released = False
        self._has_run = False
        self._thread = threading.Thread(
            target=self._run, name="rbtrace-held", daemon=True
        )

    @property
    def is_held(self) -> bool:
        """True while it is stopped where ``to_program`` or ``to_call`` stopped it."""
        return self._has_stopped and time.monotonic() < self._deadline

    @property
    def is_at_beginning(self) -> bool:
        """True while it is held and its current program has not run yet."""
        return self.is_held and not self._has_run

    @property
    def is_over(self) -> bool:
        """True once it runs and will not be stopped again."""
        return not (self._has_stopped or self._is_awaited)

    def start(self, popen: Callable[[Callable[[], None]], _Started]) -> _Started:
        """Start the program and return ``popen``'s result. Call ``to_program`` next.

        Args:
            popen: Starts the program. Its argument must be called in the new process
                before the exec.
        """
        self._pid_read, self._pid_write = os.pipe()
        self._go_read, self._go_write = os.pipe()
        try:
            self._thread.start()
        except RuntimeError:  # no more threads can be created
            self._close_pipes(self._pid_write)
            return popen(lambda: None)
        self._orders.put(self._has_loaded)
        self._is_awaited = True
        try:
            started = popen(self._wait_for_tracer)
        except BaseException as error:
            os.close(self._pid_write)
            self.release()
            if self._pid and isinstance(error, OSError):
                # popen may have received a stop instead of the exit.
                with suppress(ChildProcessError):
                    os.waitpid(self._pid, 0)
            raise
        os.close(self._pid_write)
        return started

    def _wait_for_tracer(self) -> None:
        """In the new process, wait until it is traced or its tracer has ended."""
        os.close(self._go_write)
        os.write(self._pid_write, struct.pack("=i", os.getpid()))
        os.read(self._go_read, 1)

    def to_program(self, seconds: float) -> None:
        """Let it run until it has executed and loaded another program.

        The dynamic linker has then mapped its libraries, and its own code has made no
        system call. This returns after ``seconds`` in any case.
        """
        if self._has_stopped:
            self._has_run = False
        self._order(self._has_loaded, seconds)

    def to_call(self, seconds: float) -> None:
        """Let it run to one of its next system calls, as in ``to_program``.

        The number of calls skipped grows to a quarter of those made so far, because a
        check at each call would take too long.
        """
        self._has_run = True
        self._order(self._is_next_call, seconds)

    def _order(self, is_wanted: _IsWanted, seconds: float) -> None:
        if self._has_stopped:
            self._has_stopped, self._is_awaited = False, True
            self._orders.put(is_wanted)
        with suppress(queue.Empty):
            self._has_stopped = self._is_awaited and self._answers.get(timeout=seconds)
            self._is_awaited = False

    def release(self) -> None:
        """Let the program continue, if it was started."""
        if self._thread.ident is None:
            return
        self._is_released = True
        self._orders.put(None)
        join_kernel_thread(self._thread)
        self._has_stopped = self._is_awaited = False

    # ------------------------------------------------------ the thread that traces

    def _run(self) -> None:
        hurry()
        try:
            with suppress(RbtraceError, OSError, queue.Empty):
                self._trace()
        finally:
            self._close_pipes()
            self._answers.put(False)

    def _close_pipes(self, *more: int) -> None:
        for end in (self._pid_read, self._go_read, self._go_write, *more):
            os.close(end)

    def _trace(self) -> None:
        text = os.read(self._pid_read, 4)
        if not text:
            return
        [self._pid] = struct.unpack("=i", text)
        self._deadline = time.monotonic() + HELD_SECONDS
        with Process(self._pid) as process:
            tracee = Tracee(process)
            tracee.interrupt()
            if tracee.wait(self._deadline) is None:
                return
            os.write(self._go_write, b"!")
            left = HELD_SECONDS
            while (is_wanted := self._orders.get(timeout=max(0.0, left))) is not None:
                if not self._runs_to(is_wanted, tracee, process):
                    return
                self._answers.put(True)
                left = self._deadline - time.monotonic()
            tracee.detach()

    def _runs_to(self, is_wanted: _IsWanted, tracee: Tracee, process: Process) -> bool:
        """Let it run to the entry of a wanted system call; return whether it got there.

        Otherwise the caller must end this thread, which releases the program.
        """
        signal = 0
        while True:
            tracee.resume_to_call(signal)
            stop = self._next_stop(tracee)
            if stop is None or stop.is_interrupt:
                return False
            signal = stop.signal if stop.is_delivery else 0
            self._has_executed |= stop.is_exec
            if stop.is_call:
                registers = tracee.registers()
                if registers.rax == _AT_ENTRY:
                    if registers.cs != _CS_64 or registers.orig_rax == _PTRACE:
                        return False
                    if _may_gain_rights(process, registers):
                        return False
                    if is_wanted(registers):
                        return True

    def _next_stop(self, tracee: Tracee) -> TraceeStop | None:
        """Return the next stop; None after a release, or at the deadline."""
        stop = None
        while stop is None and not self._is_released:
            now = time.monotonic()
            if now >= self._deadline:
                break
            stop = tracee.wait(min(self._deadline, now + _LOOK_SECONDS))
        return stop

    def _has_loaded(self, registers: Registers) -> bool:
        if not self._has_executed or registers.orig_rax in _OF_LOADING:
            return False
        self._has_executed = False
        self._calls = self._next_call = 0
        return True

    def _is_next_call(self, registers: Registers) -> bool:
        self._calls += 1
        if self._calls <= self._next_call:
            return False
        self._next_call = self._calls + self._calls // 4
        return True


def _may_gain_rights(process: Process, registers: Registers) -> bool:
    """Return whether the system call may execute a program with more privileges."""
    if registers.orig_rax != _EXECVE:
        return registers.orig_rax == _EXECVEAT
    memory = ProcessMemory(process.pid, process)
    room = _PAGE - registers.rdi % _PAGE
    path = memory.read(registers.rdi, room)
    if b"\0" not in path:
        path += memory.read(registers.rdi + room, _LONGEST_PATH)
    words = path.partition(b"\0")[0]
    for _ in range(_MOST_SCRIPTS):
        place = b"root" if words.startswith(b"/") else b"cwd"
        path = b"/proc/%d/%s/%s" % (process.pid, place, words)
        try:
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                return False
            if mode & (stat.S_ISUID | stat.S_ISGID) or _has_capabilities(path):
                return True
            with open(path, "rb", opener=_open_regular) as file:
                line = file.readline(_LONGEST_PATH)
        except OSError:
            return False  # the program, which has no more rights, cannot execute it
        if not line.startswith(b"#!"):
            return False
        words = (line[2:].split(maxsplit=1) or [b"/"])[0]
    return True


def _has_capabilities(path: bytes) -> bool:
    try:
        return "security.capability" in os.listxattr(path)
    except OSError:
        return False  # a file system without extended attributes


def _open_regular(path: str, flags: int) -> int:
    """Open a file without blocking, in case it became a FIFO or a device."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
