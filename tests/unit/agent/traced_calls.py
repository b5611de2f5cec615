"""The system calls of a process, seen by ftrace: a process under strace is refused."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_TRACING = Path("/sys/kernel/tracing")
_CALL = re.compile(r"\( *(\d+)\) .*: NR (\d+) \((.*)\)$", re.MULTILINE)
"""A line of the trace: process, number of the call, arguments."""

Seen = tuple[int, ...]
"""The number and six arguments."""


@contextlib.contextmanager
def traced_calls(pid: int) -> Iterator[set[Seen]]:
    """Yield a list of the system calls of ``pid`` in the block, filled at its end.

    Its children are left out.
    """
    if not (_TRACING / "events/raw_syscalls/sys_enter").exists():
        pytest.skip("needs tracefs, with raw_syscalls")
    instance = _TRACING / "instances" / f"rbtrace-test-{os.getpid()}"
    instance.mkdir()
    found: set[Seen] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for option in ("event-fork", "record-tgid"):
            (instance / "options" / option).write_text("1")
        (instance / "set_event_pid").write_text(" ".join(threads))
        (instance / "buffer_size_kb").write_text("4096")
        event = instance / "events/raw_syscalls/sys_enter/enable"
        event.write_text("1")
        yield found
        event.write_text("0")
        lines = _CALL.findall((instance / "trace").read_text())
        for caller, number, arguments in lines:
            if int(caller) == pid:
                words = arguments.split(", ")
                found.add((int(number), *(int(word, 16) for word in words)))
    finally:
        instance.rmdir()
