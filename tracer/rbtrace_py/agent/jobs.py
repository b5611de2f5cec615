"""Ruby's table of postponed jobs (3.3 and later), to learn the number of ours.

``rb_postponed_job_preregister`` returns it, but a call through a signal frame loses
what it returns.
"""

from __future__ import annotations

import struct

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


def find_handle(memory: Memory, vm: int, function: int, data: int) -> int | None:
    """The number of the job that calls ``function(data)``; None if it has none."""
    wanted = _JOB.pack(function, data)
    for word in _words(memory, vm):
        if not _LOWEST <= word < _HIGHEST or word % 8:
            continue
        try:
            table = memory.read(word, _JOBS * _JOB.size)
        except RbtraceError:
            continue
        for number in range(_JOBS):
            if table[number * _JOB.size :][: _JOB.size] == wanted:
                return number
    return None


def _words(memory: Memory, vm: int) -> list[int]:
    """What may be pointers in the VM's structure, up to where memory ends."""
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
