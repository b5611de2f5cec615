"""Groups as BPF programs record them: a count, a total, and buckets per key."""

from __future__ import annotations

from enum import IntEnum


class RecordedValues(IntEnum):
    """Kinds of recorded values: VALUES in ``bpf/programs/record.h``."""

    NONE = 0
    DURATION = 1
    INTEGER = 2
    FLOAT = 3


class By(IntEnum):
    """Kinds of keys that hits are grouped by: BY in ``bpf/programs/record.h``."""

    NOTHING = 0
    NUMBER = 1
    TEXT = 2
