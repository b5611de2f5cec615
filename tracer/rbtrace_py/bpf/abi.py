"""Interface between the BPF programs and Python: numbers and structs.

Programs get the numbers, and the sizes and offsets of the structs, by ``-D``. The C
code declares the structs, too, and checks them (CHECK in ``programs/loading.h``).
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import get_type_hints

from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import MAX_PAIRS, MAX_SLOTS
from rbtrace_py.model.stack_walk import MOST_KERNEL_FRAMES, WalkLayout, Weighing

MAX_OPERANDS = 12
KEY_TEXT = 64
KEY_CHUNKS = 16
LONGEST_KEY = KEY_CHUNKS * (KEY_TEXT - 1)
"""Maximum bytes of a string key; a key of this length may be cut."""
KEY_WHOLE = LONGEST_KEY + 1
"""Bytes stored of a long key, including its NUL."""

BUCKETS = 33_792
PAIR_DEPTH = 128
MOST_FRAMES = 512
"""Maximum number of control frames of a stack; the newest are kept."""
SCRATCHES = 4
"""Number of walks at once on a processor, if walks can be preempted."""

SITE_FROM_COOKIE = 1 << 32
"""SITE of a program that gets the site's number from the attachment's cookie."""

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
"""Symbols in programs that the loader replaces: see ``programs/loading.h``."""


class SharedStruct:
    """A packed struct that BPF programs and Python share.

    Attributes:
        size: Size in bytes.
        pack, unpack, unpack_from: Methods of ``struct.Struct``.
        definitions: Size and offsets, for ``-D``.
    """

    def __init__(self, name: str, *groups: str) -> None:
        """Declare a struct.

        Args:
            name: Name in C.
            groups: Formats of the module ``struct``, each followed by the names of the
                fields that have it: ``"I pid tid"``. Padding has no name.
        """
        layout = "<"
        offsets: dict[str, int] = {}
        for group in groups:
            code, *fields = group.split()
            for field in fields:
                offsets[f"OFFSET_{name}_{field}"] = calcsize(layout)
                layout += code
            layout += "" if fields else code
        packer = Struct(layout)
        self.size = packer.size
        self.pack = packer.pack
        self.unpack = packer.unpack
        self.unpack_from = packer.unpack_from
        self.definitions = {f"SIZE_{name}": self.size, **offsets}


OPERAND = SharedStruct(
    "operand", "B kind reg index shift size is_signed is_text is_duration", "q value"
)
SITE = SharedStruct(
    "site",
    "I series role",
    *("B bulk_first bulk_count", "? is_off", "5x"),
    f"{MAX_SLOTS * OPERAND.size}s slots",
)
TEXT64 = SharedStruct("text64", "64s words")
KEY = SharedStruct("key", "I series kind")
"""Without the key itself: a number of 8 bytes, or ``KEY_TEXT`` bytes."""
GROUP = SharedStruct("group", "Q born cpu count", "q total")
GROUP_NUMBER = SharedStruct("group_number", "Q born cpu")
BUCKET = SharedStruct("bucket", "Q born", "I cpu place")
THREAD = SharedStruct("thread", "I tid pair")
BEGINNINGS = SharedStruct("beginnings", "Q depth floor", f"{8 * PAIR_DEPTH}s started")
EVENT_RECORD = SharedStruct(
    "event_record",
    *("Q time", "I pid tid site", "H unreadable texts cut", "6x", "16s comm"),
    "Q thread fiber",
)
"""Without the values and strings."""
SWITCH_RECORD = SharedStruct(
    "switch_record", "Q time ran", "I pid tid own state lost", "H what cpu"
)
RUBY = SharedStruct(
    "ruby",
    *(
        f"{kind.__metadata__[0]} {name}"
        for name, kind in get_type_hints(WalkLayout, include_extras=True).items()
    ),
)
STACK_KEY = SharedStruct("stack_key", "Q hash ids thread marks fiber")
HEAD = SharedStruct(
    "head",
    *("Q hash ids thread marks fiber", "Q time weight"),
    *("I count kernel_count", "Q collection"),
)
INTERVAL = SharedStruct(
    "interval", "Q hash ids thread marks fiber", "Q since ran waiters waited"
)
GVL = SharedStruct("gvl", "Q tgid queue")
_SCRATCH_WORDS = 4 + 6 + 16 + 3 + MOST_FRAMES * 8 + 8192
SCRATCH = SharedStruct("scratch", f"{8 * _SCRATCH_WORDS + HEAD.size}s all")
STRUCTS = (
    *(OPERAND, SITE, TEXT64, KEY, GROUP, GROUP_NUMBER, BUCKET, THREAD, BEGINNINGS),
    *(EVENT_RECORD, SWITCH_RECORD, RUBY, STACK_KEY, HEAD, INTERVAL, GVL, SCRATCH),
)


def definitions() -> dict[str, int]:
    """Return the numbers for ``-D`` that every program gets."""
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
        "BUCKETS": BUCKETS,
        **{f"COUNTER_{counter.name}": int(counter) for counter in Counter},
        **Weighing.__members__,
        **{f"AT_LOAD_{name}": place for place, name in enumerate(AT_LOAD)},
        **dict(item for one in STRUCTS for item in one.definitions.items()),
    }
