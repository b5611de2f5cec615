"""Records of ``bpf/programs/switches.c``, decoded and corrected."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.aggregate.switches import ENDED, READY, Switch, SwitchKind

RECORD = struct.Struct("<QQIIIIIHH")
"""Time, ns on CPUs so far, process, thread, its own id, state, lost, what, CPU."""
_LOST = 0xFFFFFFFF
_LETTERS = ((0x1, "S"), (0x2, "D"), (0x4, "T"), (0x8, "t"), (0xB0, ENDED))
"""States of tasks by their bits (include/linux/sched.h)."""


@dataclass(slots=True)
class _Thread:
    """The state of a watched thread.

    own: its id as it has it itself; ran: ns on CPUs when it last left one
    is_on: None where that is not known; last: when that changed, by CLOCK_MONOTONIC
    """

    own: int
    ran: int = 0
    is_on: bool | None = None
    last: int = 0


class SwitchRecords:
    """Makes switches of records; wall_offset: of their times to CLOCK_MONOTONIC, ns.

    watched: processes of which is told
    last: when the last record was written, by CLOCK_MONOTONIC
    """

    def __init__(self, wall_offset: int) -> None:
        self.watched: set[int] = set()
        self.last = 0
        self._wall_offset = wall_offset
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._lost = 0

    def know(self, pid: int, tid: int, own: int, ran: int, time: int) -> None:
        """A thread that was there at ``time`` already."""
        self._threads[pid, tid] = _Thread(own, ran)
        self.last = self.last or time

    def forget(self, pid: int) -> None:
        """Forget a process of which no more is told."""
        self.watched.discard(pid)
        self._threads = {k: t for k, t in self._threads.items() if k[0] != pid}

    def read(self, record: bytes) -> Iterator[Switch]:
        """Read a record; none of a process that is no longer watched."""
        when, ran, pid, tid, own, state, lost, what, cpu = RECORD.unpack(record)
        yield from self.missing(lost)
        self.last = when
        if pid not in self.watched:
            return
        thread = self._threads.setdefault((pid, tid), _Thread(own))
        # A thread that ends has no id of its own any more.
        thread.own = own = own or thread.own or tid
        change = SwitchKind(what)
        letter = _letter(state) if change is SwitchKind.OFF else ""
        if change is SwitchKind.OFF and thread.is_on is False:
            # Of some threads the kernel does not tell that they leave (seen on 6.18),
            # nor so who comes on after them. The thread's own count tells since when.
            begun = max(when - max(ran - thread.ran, 0), thread.last)
            yield Switch(pid, own, begun + self._wall_offset, SwitchKind.ON, "", cpu)
        _changed(thread, change, when, ran)
        if letter == ENDED:
            self._threads.pop((pid, tid), None)
        yield Switch(pid, own, when + self._wall_offset, change, letter, cpu)

    def missing(self, lost: int) -> Iterator[Switch]:
        """Return what found no room since the last call, if anything; lost: in all."""
        count = (lost - self._lost) & _LOST
        # Of a record that was begun before another the number may be the lower one.
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
