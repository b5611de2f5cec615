"""The processes of this machine: by parent, and by command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.process import CMDLINE_LIMIT, Stat, parse_stat, split_cmdline
from rbtrace_py.linux.procfs import read_file


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process found by its command line; its strings are safe to print."""

    pid: int
    comm: str
    cmdline: str


def all_pids() -> list[int]:
    """Return the pids of all processes in ``/proc``, ascending."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def children(pid: int) -> list[int]:
    """Return the pids of the live or unreaped children of ``pid``, ascending.

    They are read from ``/proc/PID/task/*/children``, or from each process's ``stat`` if
    the kernel lacks that file (CONFIG_PROC_CHILDREN). Empty if the process is gone.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: set[int] = set()
    for task in tasks:
        try:
            words = read_file(f"/proc/{pid}/task/{task}/children").split()
        except OSError:
            if not _has_children_file():
                return _children_by_parent().get(pid, [])
            continue
        found.update(map(int, words))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of ``pid``, parents first."""
    tree = None if _has_children_file() else _children_by_parent()
    found: dict[int, None] = {}
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        for child in children(parent) if tree is None else tree.get(parent, []):
            if child != pid and child not in found:
                found[child] = None
                queue.append(child)
    return list(found)


def _has_children_file() -> bool:
    return os.path.exists("/proc/thread-self/children")


def _children_by_parent() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = _stat_of(pid)
        if stat is not None:
            tree.setdefault(stat.parent, []).append(pid)
    return tree


def _stat_of(pid: int) -> Stat | None:
    try:
        return parse_stat(read_file(f"/proc/{pid}/stat"))
    except (OSError, RbtraceError):
        return None


def find_by_cmdline(regex: str) -> list[Candidate]:
    """Return the processes whose command line matches ``regex``, by pid.

    This process and the programs that started it (``sudo rbtrace-py --ps …``) are
    omitted.

    Raises:
        UsageError: The regex is invalid.
    """
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(
            f"--ps: {error.msg} in the regular expression {regex!r}"
        ) from None
    ours = _ourselves()
    found = (candidate for candidate in _candidates() if candidate.pid not in ours)
    return [candidate for candidate in found if pattern.search(candidate.cmdline)]


def _candidates() -> Iterator[Candidate]:
    for pid in all_pids():
        try:
            words = split_cmdline(read_file(f"/proc/{pid}/cmdline", CMDLINE_LIMIT))
        except OSError:
            continue
        stat = _stat_of(pid)
        if stat is not None and words and stat.state not in "ZX":
            yield Candidate(pid, stat.comm, " ".join(words))


def _ourselves() -> set[int]:
    """Return our pid and the ancestors whose command line contains our arguments."""
    pid = os.getpid()
    ours = {pid}
    arguments = " ".join(sys.argv[1:])
    stat = _stat_of(pid)
    while arguments and stat is not None and stat.parent > 0:
        pid = stat.parent
        try:
            words = split_cmdline(read_file(f"/proc/{pid}/cmdline", CMDLINE_LIMIT))
        except OSError:
            break
        if arguments in " ".join(words):
            ours.add(pid)
        stat = _stat_of(pid)
    return ours
