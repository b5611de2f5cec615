"""The position of a thread's execution context in the thread-local data.

Since 3.0 ``ruby_current_ec`` (vm_core.h) is a thread-local variable. If its library was
linked, not loaded with dlopen, it has the same distance below the base in all threads.
Up to 2.7 the thread itself is a value of pthread_setspecific
(``ruby_native_thread_key``), which glibc keeps above the base. Either is found by its
value, without symbols.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory

_SEARCHED = 8192
"""Bytes below the base in which thread-local variables are searched."""
_LEAST_SEARCHED = 256
_PTHREAD = 0x700
"""Bytes of ``struct pthread`` in which glibc has specific values, at least."""


def distance(memory: Memory, threads: Iterable[tuple[int, int]]) -> int:
    """Return the distance of the variable from each thread's base; 0 if unknown.

    Args:
        memory: Memory of the process.
        threads: Base (``pthread_t``) and execution context of each thread. Threads with
            a wrong base, or that switch to another context meanwhile, are ignored.
    """
    # The stack is below the variables, and may contain the context too.
    return max(_common(memory, threads, -_SEARCHED, 0), default=0)


def specific_distance(memory: Memory, threads: Iterable[tuple[int, int]]) -> int:
    """Return the distance of the specific value from each thread's base; 0: unknown.

    Args:
        memory: Memory of the process.
        threads: Base and address of each thread. Threads that have not started are
            ignored.
    """
    # The thread's start arguments are above the values, and may be equal to them.
    return min(_common(memory, threads, 0, _PTHREAD), default=0)


def _common(
    memory: Memory, threads: Iterable[tuple[int, int]], low: int, high: int
) -> set[int]:
    """Return the distances at which most threads with a match have their value.

    Not all threads must agree: a thread that changes meanwhile may have its old value
    only elsewhere.
    """
    votes: Counter[int] = Counter()
    voters = 0
    for base, value in threads:
        found = _places(memory, base, value, low, high)
        votes.update(found)
        voters += bool(found)
    return {place for place, number in votes.items() if 2 * number > voters}


def _places(memory: Memory, base: int, value: int, low: int, high: int) -> set[int]:
    """Return the distances from a thread's base at which it has the value."""
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
