"""Scheduler state of each thread of a process, cheaply enough for 1000 Hz.

Which file to ask was measured (Linux 6.18, CPU of one pread of an open descriptor,
by thread): ``schedstat`` 1.2 µs, ``syscall`` 1.3, ``wchan`` 1.2–2.9, ``stat`` 2.7,
``status`` 5–6, ``stack`` 2–7. Only ``stat`` has the state of every thread. ``syscall``
says ``running`` too, but the kernel may wait a whole tick for a thread that is about to
sleep. ``schedstat`` has no state, but it changes whenever a thread gets a CPU: so that
of a sleeper is read, and its ``stat`` only when that has changed.
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
"""Left to the rest of us when descriptors are held for threads."""

_STAT_SIZE = 1024
_SCHEDSTAT_SIZE = 96
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_RUNNING = ord("R")


class TaskState(NamedTuple):
    """One thread as the kernel sees it.

    letter: R on a CPU or ready to be, S asleep, D asleep and deaf to signals, T
        stopped, t stopped by a debugger, Z or X ended
    comm: its name for the kernel, safe to show
    cpu_ns: CPU time it has used, of a running one as of its last tick
    """

    letter: str
    comm: str
    cpu_ns: int

    @property
    def is_stopped(self) -> bool:
        return self.letter in "Tt"


@dataclass(slots=True)
class _Task:
    """Descriptors (None: not held), and what was read last.

    schedstat: its text just before the thread was seen asleep; empty: ask ``stat``
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
    """Return how long a thread has had a CPU, as the scheduler counts it.

    0 where it has ended, or the kernel does not say (CONFIG_SCHED_INFO).
    """
    try:
        return int(process.read(f"task/{tid}/schedstat").split()[0])
    except (RbtraceError, IndexError):
        return 0


def run_time_of(pid: int, tid: int) -> int | None:
    """Return the run time of a thread in ns; None: it has ended, or it is unknown."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            ran, _, switches = map(int, file.read(_SCHEDSTAT_SIZE).split())
    except (OSError, ValueError):
        return None
    return ran if switches else None


class Tasks(Closing):
    """Threads of ``process``, which stays the caller's.

    Threads are taken in when they are asked about, and let go when they are gone.
    Descriptors are held as long as there are enough left of RLIMIT_NOFILE for all
    else that we do; the files of further threads are opened each time. Nothing raises
    because a thread, or all, have ended.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: dict[int, _Task] = {}
        self._has_schedstat = _has_schedstat()
        self._highest = _highest_descriptor()

    def refresh(self) -> list[int]:
        """Let go of threads that ended; the ids of all there are, ascending."""
        try:
            tids = self._process.threads()
        except RbtraceError:
            tids = []
        for tid in self._tasks.keys() - set(tids):
            self._drop(tid)
        return tids

    def running(self, tids: Iterable[int]) -> set[int]:
        """Return those that are on a CPU, or ready to be.

        Where ``schedstat`` is asked, one that was woken counts from when it gets a CPU.
        """
        found = set()
        for tid in tids:
            task = self._tasks.get(tid) or self._take(tid)
            try:
                if task is not None and self._is_running(task, tid):
                    found.add(tid)
            except OSError:
                self._drop(tid)
        return found

    def sleep_token(self, tid: int) -> bytes:
        """Return a token for the sleep in which ``running`` saw a thread.

        If the token is the same later, the thread had no CPU in between, and so wrote
        nothing to its memory. Empty: it was not asleep, or this is unknown.
        """
        task = self._tasks.get(tid)
        return b"" if task is None or task.was_running else task.schedstat

    def _is_running(self, task: _Task, tid: int) -> bool:
        fd, now = task.schedstat_fd, b""
        if fd is not None and not task.was_running:
            # Before stat: if the thread runs in between, the next round sees that.
            now = os.pread(fd, _SCHEDSTAT_SIZE, 0)
            if now == task.schedstat:
                return False  # it has not been on a CPU since it was asleep
        data = self._read_stat(task, tid)
        task.was_running = data[data.rfind(b")") + 2] == _RUNNING
        task.schedstat = now
        return task.was_running

    def state(self, tid: int) -> TaskState | None:
        """State, name and CPU time of one thread; None if it has ended."""
        task = self._tasks.get(tid) or self._take(tid)
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
        """CPU time the thread has used, None if it has ended.

        It excludes time in a run queue. The kernel updates the time of a running thread
        at the scheduler's ticks only.
        """
        times = self.times(tid)
        return None if times is None else times[0]

    def times(self, tid: int) -> tuple[int, int] | None:
        """Return run time and run delay in ns; None: the thread has ended.

        The delay is complete once the thread gets a CPU, and 0 on a kernel without
        ``schedstat``.
        """
        task = self._tasks.get(tid) or self._take(tid)
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
        """Run time and run delay in ns."""
        if task.schedstat_fd is not None:
            data = os.pread(task.schedstat_fd, _SCHEDSTAT_SIZE, 0)
        else:
            data = self._read_once(tid, "schedstat", _SCHEDSTAT_SIZE)
        ran, delay, _ = data.split()
        return int(ran), int(delay)

    def _read_stat(self, task: _Task, tid: int) -> bytes:
        """Raises OSError if the thread has ended."""
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

    def _take(self, tid: int) -> _Task | None:
        """Begin to hold a thread; None if there is none of that id."""
        stat_fd = self._open(tid, "stat")
        if stat_fd is None:
            return None
        # The kernel gives the lowest number that is free: so it tells how many are
        # in use, whoever opened them.
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
        """Give back all descriptors; may be called twice."""
        for tid in list(self._tasks):
            self._drop(tid)


def _parse(data: bytes, cpu_ns: int | None) -> TaskState:
    """Raises IndexError or ValueError on what is no line of ``stat``."""
    opening, closing = data.find(b"("), data.rfind(b")")
    fields = data[closing + 2 :].split(b" ", 14)
    if cpu_ns is None:
        cpu_ns = (int(fields[11]) + int(fields[12])) * _NS_PER_TICK
    return TaskState(chr(fields[0][0]), safe_text(data[opening + 1 : closing]), cpu_ns)


def _has_schedstat() -> bool:
    """Does this kernel count (CONFIG_SCHED_INFO)? Else all its numbers are 0."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return file.read(_SCHEDSTAT_SIZE).split() != [b"0", b"0", b"0"]
    except OSError:
        return False


def _highest_descriptor() -> int:
    """The number up to which descriptors are held for threads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return soft - _SPARE_DESCRIPTORS
