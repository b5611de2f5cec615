"""Context switches and wakeups of threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

READY, ENDED = "R", "X"
"""State letters of runnable and of exiting threads."""


class SwitchKind(IntEnum):
    """Kinds of switches, numbered as in recordings and in the BPF program."""

    FOUND = 1
    """The thread's state when the tracer began to track its process."""
    WOKEN = 2
    ON = 3
    OFF = 4
    LOST = 5
    """All threads: ``value`` switches are missing after the previous one."""
    LEFT = 6
    """All threads of the process: it is no longer tracked."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of a thread.

    Attributes:
        pid: Process id in the tracer's PID namespace; 0 for LOST.
        tid: Thread id in the thread's own PID namespace; 0 for LOST and LEFT.
        time: CLOCK_REALTIME in nanoseconds.
        what: Kind of the switch.
        state: The kernel's letter for the thread's state (FOUND and OFF).
        value: CPU number (ON and OFF), or number of missing switches (LOST).
    """

    pid: int
    tid: int
    time: int
    what: SwitchKind
    state: str = ""
    value: int = 0
