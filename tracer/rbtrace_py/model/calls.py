"""Method calls as all layers name them: records of the hook, called methods."""

from __future__ import annotations

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


CallRecord = tuple[int, int, int, int, int]
"""time, method, depth, kind, flags: numbers, as there may be millions a second."""
CALL_RECORD_SIZE = 16
CALL_ORPHAN = 1
"""Flag of a return whose entry was before arming."""
CALL_VALUES = 2
"""Flag of an entry that is followed by the values of expressions, in TEXT records."""
CALL_TEXT_SIZE, CALL_TEXT_GOES_ON = 15, 16
"""Flags of a TEXT record: how many of its bytes count, and whether more follow."""


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
