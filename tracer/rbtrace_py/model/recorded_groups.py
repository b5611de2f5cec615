"""Groups as BPF programs record them: a count, a total, and buckets per key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from rbtrace_py.model.probes import OperandRole


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


Key = int | float | bool | str | None
"""A value of ``--by``. None: nil, or, in an ungrouped result, no key."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One series and, with ``--by``, one key of it.

    Attributes:
        series: Name of the series.
        key: Value of the key.
        count: Number of hits, or sum of the buckets.
        total: Sum of the values; 0 for floats.
        buckets: Counts by bucket index; None if only hits are counted.
        is_other: True for the group of all keys beyond the maximum.
        truncated: True if the key is a string whose end is missing.
        raw: Bytes of the key, the same in each snapshot.
        key_role: Role of the operand that is the key.
    """

    series: str
    key: Key
    count: int
    total: int = 0
    buckets: Mapping[int, int] | None = None
    is_other: bool = False
    truncated: bool = False
    raw: bytes = b""
    key_role: OperandRole = OperandRole.ARGUMENT
