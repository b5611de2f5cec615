"""The kernel's view of a process's waiting threads: descriptors, children, locks."""

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
"""Awaited action of a poll of a socket, by the socket's state."""
_MOST_WATCHED = 1 << 10


class KernelWaits:
    """Waits of a process's threads, as read from the kernel on creation.

    Args:
        process: The process.
        memory: Its memory.
        tids: Thread ids in our namespace.
    """

    def __init__(self, process: Process, memory: Memory, tids: Iterable[int]) -> None:
        self._process = process
        self._memory = memory
        self._descriptors = Descriptors(process)
        self._calls = {tid: system_call(process, tid) for tid in tids}

    def of(self, tid: int | None) -> tuple[SystemCall, Awaited] | None:
        """Return a thread's system call and its awaited event."""
        call = None if tid is None else self._calls.get(tid)
        return None if call is None else (call, awaited(call, self._memory))

    def descriptor(self, number: int, action: str) -> Descriptor:
        """Return a description of a descriptor of the process."""
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
        """Return the awaited UDP sockets of all threads except the ids in ``but``."""
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
        """Return the children that a wait for ``pid`` may return.

        Args:
            pid: As of waitpid(2), in the target's PID namespace: a child's PID; a
                negative process group; 0 or None: any child.
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
    """Return a process's group; 0: the process has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _inner(pid: int) -> int:
    """Return a process's PID in its own namespace; 0: the process has ended."""
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
