"""Counters that BPF programs keep."""

from __future__ import annotations

from enum import IntEnum


class Counter(IntEnum):
    """Indexes of the BPF map ``counters``; results use the lowercase names."""

    SEEN = 0
    LOST = 1
    FILTERED = 2
    UNREADABLE = 3
    RAISED = 4
    THROWN = 5
    RUNNING_AT_ATTACH = 6
    NEGATIVE = 7
    BEYOND_RANGE = 8
    NIL = 9
    NO_BEGIN = 10
    TOO_DEEP = 11
    NO_ROOM = 12
    NO_RUBY = 13
    UNKNOWN_THREAD = 14
    HITS = 15
    IN_USE = 16
    SPENT = 17
    NO_KERNEL_STACK = 18
    KERNEL_STACK_CUT = 19
