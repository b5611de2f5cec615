"""Method calls as all layers name them: records of the hook, called methods."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum


class CallKind(IntEnum):
    """Kinds of records of the agent's hook (docs/agent/memory.md, "Records")."""

    ENTRY = 1
    RETURN = 2
    C_ENTRY = 3
    C_RETURN = 4
    LOST = 5
    GC_BEGIN = 6
    GC_END = 7
    RAISE = 8
    OBJECT = 9
    CPU = 10
    STACK = 11
    PLACE = 12
    THREAD = 13
    TEXT = 14


TIMELESS = (CallKind.PLACE, CallKind.THREAD, CallKind.TEXT)
"""Records with something else for a time; they stand behind STACK or an entry."""
CallRecord = tuple[int, int, int, int, int]
"""time, method, depth, kind, flags: numbers, as there may be millions a second."""
CALL_RECORD_SIZE = 16
KIND_AT, FLAGS_AT = 14, 15
"""Places of these two in a record."""
CALL_ORPHAN = 1
"""Flag of a return whose entry was before arming."""
CALL_VALUES = 2
"""Flag of an entry that is followed by the values of expressions, in TEXT records."""
CALL_TEXT_SIZE, CALL_TEXT_GOES_ON = 15, 16
"""Flags of a TEXT record: how many of its bytes count, and whether more follow."""


MAX_TICKS = sys.maxsize * 2 + 1
"""The largest time of a record."""
MAX_NS = sys.maxsize


@dataclass(frozen=True, slots=True)
class RingStep:
    """Records of a process's rings as they were published, in bytes.

    complete: time in ticks up to which no record is missing in this step and those
        before it; records of later times come out of order
    parts: each stream's number and its records, oldest first
    """

    complete: int
    parts: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class TickScale:
    """Ticks of the hook's clock as nanoseconds of CLOCK_MONOTONIC.

    zero_ticks, zero_ns: the clock at one moment
    ticks, ns: what passed on both clocks between two other moments
    """

    zero_ticks: int
    zero_ns: int
    ticks: int
    ns: int

    def to_ns(self, ticks: int) -> int:
        """CLOCK_MONOTONIC at ``ticks``, in the target's time namespace."""
        since = (ticks - self.zero_ticks) * self.ns // self.ticks
        return min(max(self.zero_ns + since, 0), MAX_NS)

    def duration(self, ticks: int) -> int:
        """So many ticks, in nanoseconds."""
        return min(max(ticks, 0) * self.ns // self.ticks, MAX_NS)


class MethodKind(IntEnum):
    """Kinds of methods that the agent's hook counts."""

    NO_ROOM = 0
    """All that found no room in its table."""
    RUBY = 1
    C = 2
    GC = 3
    RAISE = 4
    OBJECT = 5


@dataclass(frozen=True, slots=True)
class CalledMethod:
    """A method the hook saw, by its definition; texts are the target's.

    owner: class or module that it is defined in, None if it has none or it is unknown
    path, line: where it is defined, None if unknown
    """

    kind: MethodKind
    owner: str | None
    is_singleton: bool
    name: str | None
    path: str | None = None
    line: int | None = None

    @property
    def full_name(self) -> str:
        """``String#gsub``, ``Process.pid``; of an exception or object its class."""
        if self.kind is MethodKind.GC:
            return "garbage_collect"
        if self is NO_ROOM_METHOD:
            return "(no room)"
        if self.name is None:
            return self.owner or "(unknown)"
        if self.owner is None:
            return self.name
        return f"{self.owner}{'.' if self.is_singleton else '#'}{self.name}"


NO_ROOM_METHOD = CalledMethod(MethodKind.NO_ROOM, None, False, "")
"""All for which there was no room."""
UNKNOWN_METHOD = CalledMethod(MethodKind.NO_ROOM, None, False, None)
