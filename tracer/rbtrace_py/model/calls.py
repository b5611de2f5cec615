"""Method calls, shared by all layers: records of the hook, and called methods."""

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
"""Records whose time field has another meaning; they follow STACK or an entry."""
CallRecord = tuple[int, int, int, int, int]
"""Time, method, depth, kind, flags. A tuple: there may be millions per second."""
CALL_RECORD_SIZE = 16
KIND_AT, FLAGS_AT = 14, 15
"""Byte offsets of kind and flags in a record."""
CALL_ORPHAN = 1
"""Flag of a return whose entry was before arming."""
CALL_VALUES = 2
"""Flag of an entry; the values of expressions follow it in TEXT records."""
CALL_TEXT_SIZE, CALL_TEXT_GOES_ON = 15, 16
"""Flags of a TEXT record: mask of its number of bytes, and whether more follow."""


MAX_TICKS = sys.maxsize * 2 + 1
"""The largest time of a record."""
MAX_NS = sys.maxsize


@dataclass(frozen=True, slots=True)
class RingStep:
    """Newly published records of a process's rings, in bytes.

    Attributes:
        complete: Time in ticks up to which this step and the earlier steps have all
            records. Records of later times arrive out of order.
        parts: Stream number and records of each stream, oldest first.
    """

    complete: int
    parts: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class TickScale:
    """Conversion of the hook's clock from ticks to nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        zero_ticks: The hook's clock at one moment.
        zero_ns: CLOCK_MONOTONIC at the same moment.
        ticks: Elapsed ticks between two moments.
        ns: Elapsed nanoseconds between the same two moments.
    """

    zero_ticks: int
    zero_ns: int
    ticks: int
    ns: int

    def to_ns(self, ticks: int) -> int:
        """Return CLOCK_MONOTONIC at ``ticks``, in the target's time namespace."""
        since = (ticks - self.zero_ticks) * self.ns // self.ticks
        return min(max(self.zero_ns + since, 0), MAX_NS)

    def duration(self, ticks: int) -> int:
        """Return a number of ticks in nanoseconds."""
        return min(max(ticks, 0) * self.ns // self.ticks, MAX_NS)


class MethodKind(IntEnum):
    """Kinds of methods that the agent's hook counts."""

    NO_ROOM = 0
    """All methods without room in the hook's table."""
    RUBY = 1
    C = 2
    GC = 3
    RAISE = 4
    OBJECT = 5


@dataclass(frozen=True, slots=True)
class CalledMethod:
    """A method that the hook recorded; its strings come from the target unescaped.

    Attributes:
        kind: Kind of method.
        owner: Class or module that defines it; None if it has none or is unknown.
        is_singleton: True for a singleton method.
        name: Name of the method; None if unknown.
        path: File of its definition; None if unknown.
        line: Line of its definition; None if unknown.
    """

    kind: MethodKind
    owner: str | None
    is_singleton: bool
    name: str | None
    path: str | None = None
    line: int | None = None

    @property
    def full_name(self) -> str:
        """``String#gsub``, ``Process.pid``; for an exception or object, its class."""
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
"""Stands for all methods without room in the hook's table."""
UNKNOWN_METHOD = CalledMethod(MethodKind.NO_ROOM, None, False, None)
