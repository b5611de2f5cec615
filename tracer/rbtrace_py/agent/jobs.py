"""Ruby's table of postponed jobs (3.3 and later), to learn the number of ours.

``rb_postponed_job_preregister`` returns it, but a call through a signal frame loses
what it returns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memory import Memory

_VM_SIZE = 16 << 10
"""Bytes of ``rb_vm_t`` looked through: it has 2 to 8 kB, ``postponed_job_queue`` is a
pointer in it (vm_core.h)."""
_PAGE = 4096
_JOBS = 32
"""PJOB_TABLE_SIZE (vm_trace.c); the table begins the structure."""
_JOB = struct.Struct("<QQ")
"""``struct rb_postponed_job``: function, data."""
_LOWEST, _HIGHEST = 1 << 16, 1 << 47


def find_handle(
    memory: Memory, vm: int, job: tuple[int, int], is_code: Callable[[int], bool]
) -> int | None:
    """The number of ``job``, a function and its data; None if it has none.

    None too where two places could be the table, as a wrong number crashes Ruby.
    """
    found: set[int] = set()
    for word in set(_words(memory, vm)):
        number = _number_in(memory, word, job, is_code)
        if number is not None:
            found.add(number)
    return found.pop() if len(found) == 1 else None


def _number_in(
    memory: Memory, table: int, job: tuple[int, int], is_code: Callable[[int], bool]
) -> int | None:
    """Jobs are numbered from 0 without a gap, and never taken out."""
    if not _LOWEST <= table < _HIGHEST or table % 8:
        return None
    try:
        data = memory.read(table, _JOBS * _JOB.size)
    except RbtraceError:
        return None
    jobs = list(_JOB.iter_unpack(data))
    functions = [function for function, _ in jobs]
    used = next((i for i, f in enumerate(functions) if f == 0), _JOBS)
    if any(functions[used:]) or not all(map(is_code, functions[:used])):
        return None
    return jobs.index(job) if job in jobs else None


def _words(memory: Memory, vm: int) -> list[int]:
    """Return the words of the VM's structure that may be pointers."""
    found: list[int] = []
    at = vm
    while at < vm + _VM_SIZE:
        size = min(_PAGE - at % _PAGE, vm + _VM_SIZE - at) & -8
        try:
            found += struct.unpack(f"<{size // 8}Q", memory.read(at, size))
        except RbtraceError:
            break
        at += size
    return found
