"""Interface between the BPF programs and Python: counters, slots, packed structures.

The layouts mirror ``programs/common.h`` and ``programs/record.h``; the loader
compares sizes with what the compiler saw.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import Location, LocationKind
from rbtrace_py.model.stack_walk import MOST_KERNEL_FRAMES

MAX_SLOTS = 16
MAX_OPERANDS = 12
KEY_TEXT = 64
KEY_CHUNKS = 16
LONGEST_KEY = KEY_CHUNKS * (KEY_TEXT - 1)
"""Bytes of a string that make a key: one that has as many may go on."""
KEY_WHOLE = LONGEST_KEY + 1
"""Bytes kept of a long key, with its NUL."""
THREADS = 65_536

MASK = (1 << 64) - 1
SIGN = 1 << 63
BUCKETS = 33_792
PAIR_DEPTH = 128
MAX_PAIRS = 16
MOST_FRAMES = 512
"""Control frames of a stack at most; the newest."""
SCRATCHES = 4
"""Stacks that can be walked at once on a processor, where walks can be preempted."""

SITE_FROM_COOKIE = 1 << 32
"""SITE of a program whose sites' numbers come with the attachment."""

AT_LOAD_MARK = 0x5EED5EED << 32
"""The upper half of each AT_LOAD mark in the code, which the loader replaces."""

MAPS = (
    *("counters", "sites", "watched", "totals", "histogram", "groups", "others"),
    *("buckets", "threads", "nothing", "ring", "strings", "texts", "blank"),
    *("rubies", "scratches", "stacks", "epoch", "intervals", "turns", "gvls"),
)
NUMBERS = (
    *("SITE", "WATCH_SET", "DURATIONS", "PAIRS"),
    *("ECHO", "TEXTS", "TEXT", "RECORD_SIZE", "FIBERS"),
    *("PID_OFFSET", "TGID_OFFSET", "THREAD_PID_OFFSET", "STATE_OFFSET", "STATE_GIVEN"),
    *("RAN_OFFSET", "LEVEL_OFFSET", "NUMBERS_OFFSET", "NUMBER_SIZE"),
    *("FSBASE_OFFSET", "EACH", "WEIGHING", "LEAST", "PERIOD", "KERNEL"),
    *("STACK_OFFSET", "FILES_OFFSET", "FDTABLE_OFFSET", "FDS_OFFSET"),
    *("INODE_OFFSET", "INODE_MODE_OFFSET"),
    *("EVERY", "WEIGHTED", "FIELD_OFFSET", "FIELD_SIZE", "FIELD_SIGNED"),
)
AT_LOAD = (*MAPS, *NUMBERS)
"""Symbols that the loader fills in in programs: see ``programs/loading.h``."""


class KeyKind(IntEnum):
    """``struct key`` kinds."""

    KEY = 0
    NO_TEXT = 1
    LONG_TEXT = 2


class SlotKind(IntEnum):
    """``struct operand`` kinds beyond those of ``model.LocationKind``."""

    MISSING = 3
    PID = 4
    TID = 5


@dataclass(frozen=True, slots=True)
class Slot:
    """One value a site hands to a program: an operand, the pid or the tid.

    is_duration: a span's, which is nil if the span began before it was traced
    """

    location: Location | None = None
    special: SlotKind | None = None
    is_text: bool = False
    is_duration: bool = False

    def pack(self) -> bytes:
        if self.special is not None:
            return _OPERAND.pack(int(self.special), 0, 0, 0, 8, 0, 0, 0, 0)
        where = self.location
        if where is None or where.is_float:
            return _OPERAND.pack(int(SlotKind.MISSING), 0, 0, 0, 8, 0, 0, 0, 0)
        index = 0 if where.index is None else where.index + 1
        return _OPERAND.pack(
            int(where.kind),
            where.register or 0,
            index,
            where.scale.bit_length() - 1,
            where.size,
            where.signed,
            self.is_text,
            self.is_duration,
            (where.value & MASK) - ((where.value & SIGN) << 1),
        )


_OPERAND = struct.Struct("<BBBBBBBBq")
_SITE = struct.Struct("<IIBB?5x")
SITE_SIZE = _SITE.size + MAX_SLOTS * _OPERAND.size


def pack_site(
    series: int, slots: Sequence[Slot], role: int = 0, is_off: bool = False
) -> bytes:
    """``struct site``."""
    packed = b"".join(slot.pack() for slot in slots)
    return _SITE.pack(series, role, *_bulk(slots), is_off) + packed.ljust(
        MAX_SLOTS * _OPERAND.size, b"\0"
    )


def _bulk(slots: Sequence[Slot]) -> tuple[int, int]:
    """(first, count) of slots from the seventh on that one read can fetch."""
    run = 0
    for i, slot in enumerate(slots[6:]):
        here, first = slot.location, slots[6].location
        if (
            here is None
            or first is None
            or here.kind is not LocationKind.MEMORY
            or here.index is not None
            or here.size != 8
            or here.register != first.register
            or here.value != first.value + 8 * i
        ):
            break
        run += 1
    return (6, run) if run > 1 else (0, 0)


def definitions() -> dict[str, int]:
    """Numbers for -D that every program gets."""
    return {
        "AT_LOAD_MARK": AT_LOAD_MARK,
        "KEY_CHUNKS": KEY_CHUNKS,
        "KEY_TEXT": KEY_TEXT,
        "KEY_WHOLE": KEY_WHOLE,
        "MAX_OPERANDS": MAX_OPERANDS,
        "MAX_PAIRS": MAX_PAIRS,
        "MAX_SLOTS": MAX_SLOTS,
        "MOST_FRAMES": MOST_FRAMES,
        "MOST_KERNEL_FRAMES": MOST_KERNEL_FRAMES,
        "PAIR_DEPTH": PAIR_DEPTH,
        "SCRATCHES": SCRATCHES,
        "SITE_FROM_COOKIE": SITE_FROM_COOKIE,
        **{f"COUNTER_{counter.name}": int(counter) for counter in Counter},
        **{f"AT_LOAD_{name}": place for place, name in enumerate(AT_LOAD)},
    }
