"""The place of a thread's execution context among what a kernel thread has of its own.

From 3.0 on ``ruby_current_ec`` (vm_core.h) is a thread-local variable. Where its
library was linked and not opened later, it lies at one distance below the base that
all of a thread's variables have. Up to 2.7 the thread itself is a value of
pthread_setspecific (``ruby_native_thread_key``), which glibc keeps above that base.
Either is found by its value: no symbol is needed.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory

_SEARCHED = 8192
"""Bytes below the base in which thread-local variables are looked for."""
_LEAST_SEARCHED = 256
_PTHREAD = 0x700
"""Bytes of ``struct pthread`` in which glibc has specific values, at least."""


def distance(memory: Memory, threads: Iterable[tuple[int, int]]) -> int:
    """Return where the variable is from the base of each thread; 0 if that is unknown.

    threads: base (``pthread_t``) and execution context of each; one whose base is no
        thread's, or that goes on to another context meanwhile, says nothing
    """
    # Below the variables is the stack, which may have the context as well.
    return max(_common(memory, threads, -_SEARCHED, 0), default=0)


def specific_distance(memory: Memory, threads: Iterable[tuple[int, int]]) -> int:
    """Return where the specific value is from the base of each thread; 0: unknown.

    threads: base and address of each; one that has not begun yet says nothing
    """
    # Above the values is what the thread was started with, the same maybe.
    return min(_common(memory, threads, 0, _PTHREAD), default=0)


def _common(
    memory: Memory, threads: Iterable[tuple[int, int]], low: int, high: int
) -> set[int]:
    """Distances at which most threads that say anything have their value.

    Not all: one that goes on meanwhile may have the old value elsewhere alone.
    """
    votes: Counter[int] = Counter()
    voters = 0
    for base, value in threads:
        found = _places(memory, base, value, low, high)
        votes.update(found)
        voters += bool(found)
    return {place for place, number in votes.items() if 2 * number > voters}


def _places(memory: Memory, base: int, value: int, low: int, high: int) -> set[int]:
    """Distances from a thread's base, from ``low`` to ``high``, that have the value."""
    while True:
        try:
            data = memory.read(base + low, high - low + 8)
            break
        except UnreadableMemory:
            low //= 2
            if -low < _LEAST_SEARCHED:
                return set()
    words = struct.unpack(f"={len(data) // 8}Q", data)
    if words[-low // 8] != base:  # tcbhead_t.tcb points to itself (glibc, musl)
        return set()
    return {low + 8 * i for i, word in enumerate(words) if word == value}
