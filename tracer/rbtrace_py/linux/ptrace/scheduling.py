"""Scheduling of our threads that keep another process stopped."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress

_REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)
_LOWEST_REAL_TIME = 1
_URGENT = -20
"""Nice value."""
_PR_SET_TIMERSLACK = 29
_SHORTEST_SLACK = 1
"""Nanoseconds; 0 would mean the default, 50 µs."""


def hurry() -> None:
    """Let the calling thread run before all ordinary threads, if permitted.

    A stopped process waits while this thread waits for a CPU. A nice value alone has
    little effect: with autogroups (CONFIG_SCHED_AUTOGROUP) it counts only within a
    session.
    """
    _libc_prctl(_PR_SET_TIMERSLACK, _SHORTEST_SLACK)
    try:
        if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK not in _REAL_TIME:
            policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(_LOWEST_REAL_TIME))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _URGENT)


def _load() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).prctl
    function.argtypes = [ctypes.c_int, ctypes.c_ulong]
    return function


_libc_prctl = _load()
