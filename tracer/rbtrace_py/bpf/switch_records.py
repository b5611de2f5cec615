"""Decoder of the records of ``programs/switches.c``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.bpf.abi import SWITCH_RECORD
from rbtrace_py.model.switches import ENDED, READY, Switch, SwitchKind

_LOST = 0xFFFFFFFF
_LETTERS = ((0x1, "S"), (0x2, "D"), (0x4, "T"), (0x8, "t"), (0xB0, ENDED))
"""Letters of task states by their bits (include/linux/sched.h)."""


@dataclass(slots=True)
class _Thread:
    """State of a watched thread.

    Attributes:
        own: Thread id, as the thread itself sees it.
        ran: Nanoseconds on CPUs when the thread last left one.
        is_on: True if the thread is on a CPU; None if unknown.
        last: CLOCK_MONOTONIC of the last change of ``is_on``, in nanoseconds.
    """

    own: int
    ran: int = 0
    is_on: bool | None = None
    last: int = 0


class SwitchRecords:
    """Decodes records into switches and infers switches that have no record.

    Attributes:
        watched: Pids of the processes whose switches are returned.
        last: CLOCK_MONOTONIC of the last record, in nanoseconds.
    """

    def __init__(self, wall_offset: int) -> None:
        """Create a decoder.

        Args:
            wall_offset: CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
        """
        self.watched: set[int] = set()
        self.last = 0
        self._wall_offset = wall_offset
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._lost = 0

    def know(self, pid: int, tid: int, own: int, ran: int, time: int) -> None:
        """Add a thread that existed before its process was watched.

        Args:
            pid: Process id.
            tid: Thread id, as the tracer sees it.
            own: Thread id, as the thread itself sees it.
            ran: Nanoseconds on CPUs so far.
            time: CLOCK_MONOTONIC, in nanoseconds.
        """
        self._threads[pid, tid] = _Thread(own, ran)
        self.last = self.last or time

    def forget(self, pid: int) -> None:
        """Stop returning the switches of a process."""
        self.watched.discard(pid)
        self._threads = {k: t for k, t in self._threads.items() if k[0] != pid}

    def read(self, record: bytes) -> Iterator[Switch]:
        """Yield the switches of a record; nothing if its process is not watched."""
        when, ran, pid, tid, own, state, lost, what, cpu = SWITCH_RECORD.unpack(record)
        yield from self.missing(lost)
        self.last = when
        if pid not in self.watched:
            return
        thread = self._threads.setdefault((pid, tid), _Thread(own))
        # An exiting thread no longer has an id in its own namespace.
        thread.own = own = own or thread.own or tid
        change = SwitchKind(what)
        letter = _letter(state) if change is SwitchKind.OFF else ""
        if change is SwitchKind.OFF and thread.is_on is False:
            # The kernel omits some switches (seen on 6.18): neither the thread that
            # leaves the CPU nor its successor has a record. The successor's run time
            # shows when it got the CPU.
            begun = max(when - max(ran - thread.ran, 0), thread.last)
            yield Switch(pid, own, begun + self._wall_offset, SwitchKind.ON, "", cpu)
        _changed(thread, change, when, ran)
        if letter == ENDED:
            self._threads.pop((pid, tid), None)
        yield Switch(pid, own, when + self._wall_offset, change, letter, cpu)

    def missing(self, lost: int) -> Iterator[Switch]:
        """Yield a LOST switch if records were dropped since the last call.

        Args:
            lost: Number of all records dropped so far; its low 32 bits suffice.
        """
        count = (lost - self._lost) & _LOST
        # Records are reserved concurrently: a later one may hold a lower number.
        if 0 < count < 1 << 31:
            self._lost = lost & _LOST
            for thread in self._threads.values():
                thread.is_on = None
            last = self.last + self._wall_offset
            yield Switch(0, 0, last, SwitchKind.LOST, "", count)


def _changed(thread: _Thread, change: SwitchKind, when: int, ran: int) -> None:
    if change is SwitchKind.WOKEN:
        if thread.is_on is None:
            thread.is_on, thread.last = False, when
        return
    thread.is_on, thread.last = change is SwitchKind.ON, when
    if change is SwitchKind.OFF:
        thread.ran = ran


def _letter(state: int) -> str:
    return next((letter for bits, letter in _LETTERS if state & bits), READY)
