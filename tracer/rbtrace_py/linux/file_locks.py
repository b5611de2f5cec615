"""Holders of file locks that others wait for (``/proc/locks``)."""

from __future__ import annotations

import os

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.procfs import read_file

_WAITS = "->"
_LARGEST = 1 << 22


def lock_holders(process: Process, number: int) -> list[int]:
    """Return the pids that hold a lock on the file of a descriptor, ascending.

    The pids refer to our pid namespace. Holders in other namespaces are omitted.
    """
    try:
        fd = process.open(f"fd/{number}", os.O_PATH)
    except RbtraceError:
        return []
    try:
        status = os.stat(fd)
        data = read_file("/proc/locks", _LARGEST)
    except OSError:
        return []
    finally:
        os.close(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return _holders(data.decode("ascii", "replace"), f"{device}:{status.st_ino}")


def _holders(text: str, file: str) -> list[int]:
    """Parse ``1: FLOCK  ADVISORY  WRITE 1234 08:01:99 0 EOF``. Waiters have ``->``."""
    found = set()
    for line in text.split("\n"):
        words = line.split()[1:]
        if len(words) > 4 and words[0] != _WAITS and words[4] == file:
            found.add(int(words[3]) if words[3].isdigit() else 0)
    return sorted(found - {0})
