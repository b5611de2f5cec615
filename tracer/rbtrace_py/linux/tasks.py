"""Scheduler state of each thread of a process, cheaply enough for 1000 Hz.

The files were compared on Linux 6.18 (CPU of one pread of an open descriptor, per
thread): ``schedstat`` 1.2 µs, ``syscall`` 1.3, ``wchan`` 1.2–2.9, ``stat`` 2.7,
``status`` 5–6, ``stack`` 2–7. Only ``stat`` has the state of every thread. ``syscall``
reports ``running`` too, but the kernel may wait a whole tick for a thread that is about
to sleep. ``schedstat`` has no state, but it changes whenever a thread gets a CPU. The
``stat`` of a sleeping thread is therefore read only after its ``schedstat`` has
changed.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.text import safe_text

_SPARE_DESCRIPTORS = 128
"""Descriptors reserved for other uses than threads."""

_STAT_SIZE = 1024
_SCHEDSTAT_SIZE = 96
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_RUNNING = ord("R")


class TaskState(NamedTuple):
    """The kernel's view of a thread.

    Attributes:
        letter: R on CPU or runnable, S asleep, D uninterruptible, T stopped, t stopped
            by a debugger, Z or X ended.
        comm: Its name in the kernel, safe to print.
        cpu_ns: CPU time used; for a running thread, until its last tick.
    """

    letter: str
    comm: str
    cpu_ns: int

    @property
    def is_stopped(self) -> bool:
        return self.letter in "Tt"


@dataclass(slots=True)
class _Task:
    """Descriptors (None: not open), and the last values read.

    ``schedstat`` is the file's contents just before the thread was seen asleep. If it
    is empty, ``stat`` must be read.
    """

    stat_fd: int | None
    schedstat_fd: int | None
    schedstat: bytes = b""
    was_running: bool = False

    def close(self) -> None:
        for fd in (self.stat_fd, self.schedstat_fd):
            if fd is not None:
                os.close(fd)
        self.stat_fd = self.schedstat_fd = None


def is_stopped(process: Process, tid: int) -> bool:
    """Return whether a thread is stopped, by a signal or a debugger."""
    try:
        return _parse(process.read(f"task/{tid}/stat"), 0).is_stopped
    except (RbtraceError, IndexError, ValueError):
        return False


def ran_ns(process: Process, tid: int) -> int:
    """Return the run time of a thread in ns, from the scheduler.

    0 if it has ended, or if the kernel does not record it (CONFIG_SCHED_INFO).
    """
    try:
        return int(process.read(f"task/{tid}/schedstat").split()[0])
    except (RbtraceError, IndexError):
        return 0


def run_time_of(pid: int, tid: int) -> int | None:
    """Return the run time of a thread in ns; None if it has ended or is unknown."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            ran, _, switches = map(int, file.read(_SCHEDSTAT_SIZE).split())
    except (OSError, ValueError):
        return None
    return ran if switches else None


class Tasks(Closing):
    """Threads of ``process``, which the caller closes.

    A thread is opened at its first query and closed when it is gone. Descriptors stay
    open while enough of RLIMIT_NOFILE remains for other uses; otherwise files are
    opened for each read. An ended thread or process raises no error.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: dict[int, _Task] = {}
        self._has_schedstat = _has_schedstat()
        self._highest = _highest_descriptor()

    def refresh(self) -> list[int]:
        """Close threads that have ended; return the IDs of all others, ascending."""
        try:
            tids = self._process.threads()
        except RbtraceError:
            tids = []
        for tid in self._tasks.keys() - set(tids):
            self._drop(tid)
        return tids

    def running(self, tids: Iterable[int]) -> set[int]:
        """Return the threads that are on a CPU or runnable.

        With ``schedstat``, a woken thread counts only once it gets a CPU.
        """
        found = set()
        for tid in tids:
            task = self._tasks.get(tid) or self._open_task(tid)
            try:
                if task is not None and self._is_running(task, tid):
                    found.add(tid)
            except OSError:
                self._drop(tid)
        return found

    def sleep_token(self, tid: int) -> bytes:
        """Return a token for the sleep in which ``running`` saw a thread.

        If the token is the same later, the thread had no CPU in between, so it did not
        write to memory. It is empty if the thread was not asleep or this is unknown.
        """
        task = self._tasks.get(tid)
        return b"" if task is None or task.was_running else task.schedstat

    def _is_running(self, task: _Task, tid: int) -> bool:
        fd, now = task.schedstat_fd, b""
        if fd is not None and not task.was_running:
            # Read before stat: if the thread runs in between, the next pass notices it.
            now = os.pread(fd, _SCHEDSTAT_SIZE, 0)
            if now == task.schedstat:
                return False  # it has not been on a CPU since it was asleep
        data = self._read_stat(task, tid)
        task.was_running = data[data.rfind(b")") + 2] == _RUNNING
        task.schedstat = now
        return task.was_running

    def state(self, tid: int) -> TaskState | None:
        """Return the state, name, and CPU time of a thread; None if it has ended."""
        task = self._tasks.get(tid) or self._open_task(tid)
        if task is None:
            return None
        try:
            data = self._read_stat(task, tid)
            ran = self._schedstat(task, tid)[0] if self._has_schedstat else None
            return _parse(data, ran)
        except (OSError, ValueError, IndexError):
            self._drop(tid)
            return None

    def cpu_ns(self, tid: int) -> int | None:
        """Return the CPU time of a thread in ns; None if it has ended.

        It excludes time in a run queue. The kernel updates the time of a running thread
        only at scheduler ticks.
        """
        times = self.times(tid)
        return None if times is None else times[0]

    def times(self, tid: int) -> tuple[int, int] | None:
        """Return the run time and run delay of a thread in ns; None if it has ended.

        The delay is complete once the thread gets a CPU, and 0 on a kernel without
        ``schedstat``.
        """
        task = self._tasks.get(tid) or self._open_task(tid)
        if task is None:
            return None
        try:
            if self._has_schedstat:
                return self._schedstat(task, tid)
            return _parse(self._read_stat(task, tid), None).cpu_ns, 0
        except (OSError, ValueError, IndexError):
            self._drop(tid)
            return None

    def _schedstat(self, task: _Task, tid: int) -> tuple[int, int]:
        """Return the run time and run delay in ns."""
        if task.schedstat_fd is not None:
            data = os.pread(task.schedstat_fd, _SCHEDSTAT_SIZE, 0)
        else:
            data = self._read_once(tid, "schedstat", _SCHEDSTAT_SIZE)
        ran, delay, _ = data.split()
        return int(ran), int(delay)

    def _read_stat(self, task: _Task, tid: int) -> bytes:
        """Read a thread's ``stat``; raises OSError if the thread has ended."""
        if task.stat_fd is None:
            return self._read_once(tid, "stat", _STAT_SIZE)
        data = os.pread(task.stat_fd, _STAT_SIZE, 0)
        if not data:
            raise ProcessLookupError
        return data

    def _read_once(self, tid: int, name: str, size: int) -> bytes:
        try:
            data = self._process.read(f"task/{tid}/{name}", size)
        except RbtraceError as error:
            raise ProcessLookupError from error
        if not data:
            raise ProcessLookupError
        return data

    def _open_task(self, tid: int) -> _Task | None:
        """Open a thread's files; return None if it has ended."""
        stat_fd = self._open(tid, "stat")
        if stat_fd is None:
            return None
        # The kernel uses the lowest free number, so this shows how many are in use by
        # the whole process.
        if stat_fd > self._highest:
            os.close(stat_fd)
            return _Task(None, None)
        schedstat_fd = self._open(tid, "schedstat") if self._has_schedstat else None
        task = self._tasks[tid] = _Task(stat_fd, schedstat_fd)
        return task

    def _open(self, tid: int, name: str) -> int | None:
        try:
            return self._process.open(f"task/{tid}/{name}")
        except RbtraceError:
            return None

    def _drop(self, tid: int) -> None:
        task = self._tasks.pop(tid, None)
        if task is not None:
            task.close()

    def close(self) -> None:
        """Close all descriptors. Closing twice does nothing."""
        for tid in list(self._tasks):
            self._drop(tid)


def _parse(data: bytes, cpu_ns: int | None) -> TaskState:
    """Parse a line of ``stat``; raises IndexError or ValueError if malformed."""
    opening, closing = data.find(b"("), data.rfind(b")")
    fields = data[closing + 2 :].split(b" ", 14)
    if cpu_ns is None:
        cpu_ns = (int(fields[11]) + int(fields[12])) * _NS_PER_TICK
    return TaskState(chr(fields[0][0]), safe_text(data[opening + 1 : closing]), cpu_ns)


def _has_schedstat() -> bool:
    """Return whether this kernel fills ``schedstat`` (CONFIG_SCHED_INFO)."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return file.read(_SCHEDSTAT_SIZE).split() != [b"0", b"0", b"0"]
    except OSError:
        return False


def _highest_descriptor() -> int:
    """Return the highest descriptor that may stay open for a thread."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return soft - _SPARE_DESCRIPTORS
