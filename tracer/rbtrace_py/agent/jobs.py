"""Ruby's table of postponed jobs (3.3 and later), from which we learn a job's number.

``rb_postponed_job_preregister`` returns the number, but a call through a signal frame
loses the return value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memory import Memory

_VM_SIZE = 16 << 10
"""Bytes of ``rb_vm_t`` that are searched: it has 2 to 8 kB. Up to 4.0 its member
``postponed_job_queue`` points to the table (vm_core.h)."""
_PAGE = 4096
_JOBS = 32
"""PJOB_TABLE_SIZE (vm_trace.c); the table is at the start of the structure."""
_JOB = struct.Struct("<QQ")
"""``struct rb_postponed_job``: function, data."""
_LOWEST, _HIGHEST = 1 << 16, 1 << 47


def find_handle(
    memory: Memory,
    vm: int,
    job_tables: Sequence[int],
    job: tuple[int, int],
    is_code: Callable[[int], bool],
) -> int | None:
    """Return the number of a postponed job, or None.

    None also if two tables contain the job, because a wrong number crashes Ruby.

    Args:
        memory: Memory of the process.
        vm: Address of its ``rb_vm_t``.
        job_tables: Other addresses at which the table may be. Since 4.1 it is a
            separate variable (vm_trace.c).
        job: Function and data.
        is_code: Returns whether an address is in executable memory.
    """
    found: set[int] = set()
    for table in {*_words(memory, vm), *job_tables}:
        number = _number_in(memory, table, job, is_code)
        if number is not None:
            found.add(number)
    return found.pop() if len(found) == 1 else None


def _number_in(
    memory: Memory, table: int, job: tuple[int, int], is_code: Callable[[int], bool]
) -> int | None:
    """Return a job's number. Numbers have no gaps, and jobs are never removed."""
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
