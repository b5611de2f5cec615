"""Numbers that the BPF programs and Python share; programs get them by ``-D``."""

from __future__ import annotations

from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import MAX_PAIRS, MAX_SLOTS
from rbtrace_py.model.stack_walk import MOST_KERNEL_FRAMES

MAX_OPERANDS = 12
KEY_TEXT = 64
KEY_CHUNKS = 16
LONGEST_KEY = KEY_CHUNKS * (KEY_TEXT - 1)
"""Bytes of a string that make a key: one that has as many may go on."""
KEY_WHOLE = LONGEST_KEY + 1
"""Bytes kept of a long key, with its NUL."""

BUCKETS = 33_792
PAIR_DEPTH = 128
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
