"""The place of the current execution context among a thread's own variables.

``ruby_current_ec`` (vm_core.h, 3.0 and later) is a thread-local variable. Where its
library was linked and not opened later, it lies at one distance from the base that all
of a thread's variables have, which is found by its value: no symbol is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import Memory

_SEARCHED = 8192
"""Bytes below the base in which thread-local variables are looked for."""
_LEAST_SEARCHED = 256


def distance(memory: Memory, threads: Iterable[tuple[int, int]]) -> int:
    """Return where the variable is from the base of each thread; 0 if that is unknown.

    threads: base (``pthread_t``) and execution context of each; one whose base is no
        thread's, or that goes on to another context meanwhile, says nothing
    """
    places: set[int] | None = None
    for base, ec in threads:
        found = _places(memory, base, ec)
        if found:
            places = found if places is None else places & found
    # Below the variables is the stack, which may have the context as well.
    return max(places) if places else 0


def _places(memory: Memory, base: int, ec: int) -> set[int]:
    """Distances from a thread's base at which there is its context."""
    size = _SEARCHED
    while size >= _LEAST_SEARCHED:
        try:
            data = memory.read(base - size, size + 8)
        except UnreadableMemory:
            size //= 2
            continue
        *words, own = struct.unpack(f"={size // 8 + 1}Q", data)
        if own != base:  # tcbhead_t.tcb points to itself (glibc, musl)
            return set()
        return {8 * i - size for i, word in enumerate(words) if word == ec}
    return set()
