"""The seccomp filters of a thread, read while the thread is stopped."""

from __future__ import annotations

import time
from typing import NamedTuple

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.restart import as_if_not_stopped, not_restarted
from rbtrace_py.linux.ptrace.seccomp import RESTART, Filter, is_allowed
from rbtrace_py.linux.ptrace.tracee import Tracee
from rbtrace_py.linux.ptrace.tracing_thread import in_a_thread

_SECONDS = 1.0


class ThreadFilters(NamedTuple):
    """A thread's filters, newest first, and the time it was stopped."""

    filters: list[Filter]
    stopped_ns: int


def read_filters(process: Process, tid: int) -> ThreadFilters:
    """Stop a thread of ``process``, read its filters, and release it.

    An interrupted sleep resumes by ``restart_syscall``. If the filters forbid this
    call, the sleep ends with EINTR.

    Raises:
        NotPermitted: We may not trace the thread, or another process traces it.
        NoSuchTarget: The thread has ended.
        RbtraceError: The thread did not stop in time, or the kernel denied the filters.
    """
    return in_a_thread(lambda: _read(process, tid))


def _read(process: Process, tid: int) -> ThreadFilters:
    tracee = Tracee(process, tid)
    since = time.monotonic_ns()
    tracee.interrupt()
    _await_stop(tracee)
    before = as_if_not_stopped(tracee.registers())
    # Do this first: if we are killed, the thread must not call restart_syscall.
    tracee.set_registers(not_restarted(before))
    try:
        filters = tracee.filters()
        if is_allowed(filters, RESTART):
            tracee.set_registers(before)
    finally:
        stopped_ns = time.monotonic_ns() - since
        tracee.detach()
    return ThreadFilters(filters, stopped_ns)


def _await_stop(tracee: Tracee) -> None:
    """Wait for our stop, and deliver signals that arrive before it."""
    deadline = time.monotonic() + _SECONDS
    while (stop := tracee.wait(deadline)) is not None:
        if stop.is_interrupt:
            return
        tracee.resume(stop.signal if stop.is_delivery else 0)
    raise RbtraceError(
        f"thread {tracee.tid} could not be paused in time",
        "Try again: it may be deep in the kernel, or frozen (docker pause)",
    )
