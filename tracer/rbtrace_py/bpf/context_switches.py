"""Context switches and wakeups of the threads of watched processes.

One BPF program on the scheduler's tracepoints writes a record per switch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import RawTracepoint, attach_first
from rbtrace_py.bpf.features import check_rights
from rbtrace_py.bpf.maps import MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.bpf.switch_records import SwitchRecords
from rbtrace_py.errors import BpfError, RbtraceError
from rbtrace_py.linux.btf import Btf, NoBtf
from rbtrace_py.linux.clocks import wall_offset
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import (
    USE_HOST_PIDS,
    Process,
    host_pid_namespace,
    inner_id,
    parse_status,
)
from rbtrace_py.linux.tasks import ran_ns
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.switches import Switch, SwitchKind

RING_SIZE = 1 << 22
"""Bytes. The ring has room for 87,000 records of 48 bytes."""
_MAX_PROCESSES = 65_536
_TRIES = 1000
"""Maximum number of reads of the ring while a record is still being written."""
_WAYS = ({"STATE_GIVEN": 1}, {"STATE_GIVEN": 0})
"""Numbers for Linux 5.19 and later, and for earlier kernels."""

_OFFSETS = {
    "PID_OFFSET": ("task_struct.pid",),
    "TGID_OFFSET": ("task_struct.tgid",),
    "THREAD_PID_OFFSET": ("task_struct.thread_pid",),
    "RAN_OFFSET": ("task_struct.se.sum_exec_runtime",),
    "STATE_OFFSET": ("task_struct.__state", "task_struct.state"),
    "LEVEL_OFFSET": ("pid.level",),
    "NUMBERS_OFFSET": ("pid.numbers",),
}
"""Offsets that the program needs, with the field names of different kernels."""


class ContextSwitches(Closing):
    """Recorder of switches; it watches no process at first.

    Attributes:
        wall_offset: Times of switches minus CLOCK_MONOTONIC, in nanoseconds.
    """

    def __init__(self) -> None:
        """Attach to the scheduler's tracepoints.

        Raises:
            NotPermitted: The tracer lacks the rights to use BPF.
            BpfError: The kernel lacks a feature, or the tracer runs in a container's
                pid namespace.
            NoBtf: The kernel's BTF is missing or lacks a field.
        """
        self.wall_offset = wall_offset()
        self._records = SwitchRecords(self.wall_offset)
        self._waiting: list[Switch] = []
        with ExitStack() as stack:
            self._program = _attached(stack)
            self._ring = RingBuffer(self._program.maps["ring"])
            stack.callback(self._ring.close)
            self._stack = stack.pop_all()

    def watch(self, process: Process) -> None:
        """Watch a process from now on, and add a FOUND switch per thread."""
        self._records.watched.add(process.pid)
        self._program.maps["watched"].put(_u32(process.pid), _u32(0))
        now = time.monotonic_ns()
        for tid, own, letter, ran in _threads(process):
            self._records.know(process.pid, tid, own, ran, now)
            at = now + self.wall_offset
            self._waiting.append(Switch(process.pid, own, at, SwitchKind.FOUND, letter))

    def forget(self, pid: int) -> None:
        """Stop watching a process."""
        if pid not in self._records.watched:
            return
        self._program.maps["watched"].delete(_u32(pid))
        now = time.monotonic_ns() + self.wall_offset
        self._waiting += self._drained()
        self._waiting.append(Switch(pid, 0, now, SwitchKind.LEFT))
        self._records.forget(pid)

    def take(self) -> list[Switch]:
        """Return the switches since the last call, in the order of their times."""
        found = self._waiting + self._drained()
        self._waiting = []
        # CPUs write concurrently, so the ring's order is not the order of times.
        found.sort(key=lambda switch: switch.time)
        return found

    def close(self) -> None:
        self._stack.close()

    def _drained(self) -> list[Switch]:
        found: list[Switch] = []
        until = time.monotonic_ns()
        for _ in range(_TRIES):
            for record in self._ring.records():
                found += self._records.read(record)
            if self._records.last > until or not self._ring.is_behind:
                break
        lost = self._program.counters()[Counter.LOST]
        return found + list(self._records.missing(lost))


def _attached(stack: ExitStack) -> Program:
    """Attach; since Linux 5.19 the tracepoint passes the leaving thread's state."""
    if not host_pid_namespace():
        raise BpfError(
            "this is a container's pid namespace, and the kernel uses other pids",
            USE_HOST_PIDS,
        )
    check_rights()
    numbers = _numbers()
    return attach_first(
        stack, _WAYS, lambda attempt, way: _attach(attempt, {**numbers, **way})
    )


def _attach(stack: ExitStack, numbers: dict[str, int]) -> Program:
    program = Program(
        "switches.c",
        {
            "watched": MapSpec(sys_.MAP_TYPE_HASH, 4, 4, _MAX_PROCESSES),
            "counters": counters_map(),
            "ring": MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, RING_SIZE),
        },
        {},
        numbers,
    )
    stack.callback(program.close)
    for function, event in (
        ("on_switch", "sched_switch"),
        ("on_wakeup", "sched_wakeup"),
        ("on_wakeup", "sched_wakeup_new"),
    ):
        stack.callback(RawTracepoint(program, function, event).close)
    return program


def _numbers() -> dict[str, int]:
    """Raises NoBtf."""
    btf = Btf.load()
    size = btf.size("upid")
    if size is None:
        raise NoBtf("the kernel's BTF lacks upid")
    return {"NUMBER_SIZE": size, **btf.known_offsets(_OFFSETS)}


def _threads(process: Process) -> Iterator[tuple[int, int, str, int]]:
    """Yield each thread's id, id in its own namespace, state, and ns on CPUs."""
    try:
        tids = process.threads()
    except RbtraceError:
        return
    for tid in tids:
        try:
            status = parse_status(process.read(f"task/{tid}/status"))
            yield tid, inner_id(status, tid), status["State"][0], ran_ns(process, tid)
        except (RbtraceError, KeyError, IndexError):
            continue  # the thread has exited


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")
