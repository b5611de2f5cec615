"""What the kernel says of the threads of a process that wait: descriptors, children."""

from __future__ import annotations

import os
from collections.abc import Iterable, Set

from rbtrace_py.linux.descriptors import Descriptors
from rbtrace_py.linux.file_locks import lock_holders
from rbtrace_py.linux.memory import Memory
from rbtrace_py.linux.process import (
    CMDLINE_LIMIT,
    Process,
    inner_id,
    parse_status,
    split_cmdline,
)
from rbtrace_py.linux.processes import children
from rbtrace_py.linux.procfs import read_file
from rbtrace_py.linux.system_calls import Awaited, SystemCall, awaited, system_call
from rbtrace_py.model.waits import Descriptor, OtherProcess

_POLLED = ("read", "write", "read or write")
_OF_SOCKETS = {"listening": "accept", "connecting": "connect"}
"""What is waited for by a poll, by a socket's state."""
_MOST_WATCHED = 1 << 10


class KernelWaits:
    """The kernel's word on the threads of a process, taken when it is made.

    tids: of the threads, as our own namespace has them
    """

    def __init__(self, process: Process, memory: Memory, tids: Iterable[int]) -> None:
        self._process = process
        self._memory = memory
        self._descriptors = Descriptors(process)
        self._calls = {tid: system_call(process, tid) for tid in tids}

    def of(self, tid: int | None) -> tuple[SystemCall, Awaited] | None:
        """Return the call that a thread was in, and what for."""
        call = None if tid is None else self._calls.get(tid)
        return None if call is None else (call, awaited(call, self._memory))

    def descriptor(self, number: int, action: str) -> Descriptor:
        """Describe a descriptor of the process."""
        names = self._descriptors
        state = names.name(number).rpartition(", ")[2]
        if action in _POLLED:
            action = _OF_SOCKETS.get(state, action)
        watched = names.watched(number)[:_MOST_WATCHED] if action == "epoll" else []
        ends = names.other_ends(number)
        others = [] if ends else names.other_processes(number)
        return Descriptor(
            number,
            action,
            names.name(number),
            tuple(ends),
            tuple(map(_other_process, others)),
            tuple(watched),
        )

    def native_waits(self, but: Set[int | None]) -> tuple[Descriptor, ...]:
        """The UDP sockets that threads wait for, ``but`` those with these ids."""
        found = [
            self.descriptor(number, action)
            for tid, call in self._calls.items()
            if call is not None and tid not in but
            for number, action in awaited(call, self._memory).descriptors
        ]
        return tuple(one for one in found if one.target.startswith("udp"))

    def lock_holders(self, number: int) -> tuple[OtherProcess, ...]:
        return tuple(map(_other_process, lock_holders(self._process, number)))

    def children(self, pid: int | None) -> tuple[OtherProcess, ...]:
        """The child of that pid, or all; None, 0: any; below 0: of that group.

        The target's memory says which, by the number in its own pid namespace.
        """
        pids = children(self._process.pid)
        if pid and pid < 0:
            pids = [one for one in pids if _group(one) == -pid]
        elif pid:
            pids = [one for one in pids if _inner(one) == pid]
            if not pids:
                return (OtherProcess(pid),)
        return tuple(map(_other_process, pids))


def _group(pid: int) -> int:
    """Return a process's group, 0 where it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _inner(pid: int) -> int:
    """Return a process's pid in its own namespace, 0 where it has ended."""
    try:
        return inner_id(parse_status(read_file(f"/proc/{pid}/status", 1 << 16)), pid)
    except OSError:
        return 0


def _other_process(pid: int) -> OtherProcess:
    try:
        words = split_cmdline(read_file(f"/proc/{pid}/cmdline", CMDLINE_LIMIT))
    except OSError:
        words = []
    return OtherProcess(pid, " ".join(words))
