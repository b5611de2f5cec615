"""The pids of the tracked processes, which the kernel updates at forks and exits."""

from __future__ import annotations

from collections.abc import Iterable

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import RawTracepoint
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.errors import BpfError, RbtraceError
from rbtrace_py.linux import btf
from rbtrace_py.linux.process import USE_HOST_PIDS, host_pid_namespace
from rbtrace_py.model.counters import Counter

_MAX_PROCESSES = 65_536


class TrackedPids:
    """The set of pids whose hits count.

    Attributes:
        watched: The map with these pids as keys.
    """

    def __init__(self, pids: Iterable[int], follows_forks: bool) -> None:
        """Create the set.

        Args:
            pids: The first pids.
            follows_forks: True if children of tracked processes are added.

        Raises:
            BpfError: The tracer runs in a container's pid namespace.
            NotPermitted: The tracer lacks the rights to use BPF.
        """
        if not host_pid_namespace():
            raise BpfError(
                "cannot trace several processes from a container's pid namespace:"
                " the kernel uses other pids",
                f"Name one PID. {USE_HOST_PIDS}",
            )
        self.watched = Map("watched", MapSpec(sys_.MAP_TYPE_HASH, 4, 4, _MAX_PROCESSES))
        self._program: Program | None = None
        self._tracepoints: list[RawTracepoint] = []
        for pid in pids:
            self.add(pid)
        if follows_forks:
            self._follow_forks()

    def _follow_forks(self) -> None:
        """Follow forks in the kernel; without BTF the caller has to find children."""
        try:
            offsets = btf.Btf.load().offsets(("task_struct.pid", "task_struct.tgid"))
        except RbtraceError:
            return
        pid, tgid = offsets["task_struct.pid"], offsets["task_struct.tgid"]
        if pid is None or tgid is None:
            return
        self._program = Program(
            "tracked_pids.c",
            {"counters": counters_map()},
            {},
            {"PID_OFFSET": pid, "TGID_OFFSET": tgid},
            shared={"watched": self.watched},
        )
        for function, event in (("on_exit", "exit"), ("on_fork", "fork")):
            self._tracepoints.append(
                RawTracepoint(self._program, function, f"sched_process_{event}")
            )

    @property
    def is_immediate(self) -> bool:
        """True if children are tracked from their first instruction."""
        return bool(self._tracepoints)

    def add(self, pid: int) -> None:
        """Track a process."""
        self.watched.put(pid.to_bytes(4, "little"), bytes(4))

    def discard(self, pid: int) -> None:
        """Stop tracking a process."""
        self.watched.delete(pid.to_bytes(4, "little"))

    @property
    def no_room(self) -> int:
        """Number of children that did not fit into the map."""
        return self._program.counters()[Counter.NO_ROOM] if self._program else 0

    def pids(self) -> list[int]:
        """Return the tracked pids."""
        return [int.from_bytes(key, "little") for key, _ in self.watched.items()]

    def close(self) -> None:
        for tracepoint in self._tracepoints:
            tracepoint.close()
        if self._program is not None:
            self._program.close()
        self.watched.close()
