"""Attachment of programs to sites of files, tracepoints, and timers.

Sites of a file share one ``uprobe_multi`` link if the kernel supports it (6.10):
hundreds of sites are attached and detached in milliseconds. Otherwise each site has a
perf uprobe, and detaching takes about 0.1 s per site. Both are descriptors: if the
tracer dies, the kernel restores the sites and their semaphores.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.program import Program
from rbtrace_py.errors import BpfError, NoSuchTarget, NotPermitted

_UPROBE_PMU = Path("/sys/bus/event_source/devices/uprobe/type")
_PERF_FLAG_FD_CLOEXEC = 8
_IOC_ENABLE = 0x2400
_IOC_SET_BPF = 0x40042408
_ENOTSUPP = 524
_TYPE_SOFTWARE, _CPU_CLOCK, _TYPE_TRACEPOINT = 1, 0, 2
"""PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK and PERF_TYPE_TRACEPOINT
(include/uapi/linux/perf_event.h)."""
RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")
"""A program that returns 0, in two instructions."""
_SLOWER_TIMER = (0.35, 0.45)
"""Range of the share of a processor's ticks that its slower timer has."""
_ONLINE = Path("/sys/devices/system/cpu/online")
_FILTERS_BY_PROCESS = (6, 10)


@dataclass(frozen=True, slots=True)
class Point:
    """One site to attach a program to.

    Attributes:
        offset: Offset in the file in bytes.
        semaphore_offset: Offset of the semaphore in the file; 0 without one.
        number: Index in the ``sites`` map.
    """

    offset: int
    semaphore_offset: int
    number: int


class Loadable(Protocol):
    """A program that can be attached to sites, such as ``Program``."""

    def load(
        self,
        function: str,
        program_type: int = ...,
        attach_type: int = ...,
        site: int = ...,
    ) -> int:
        """Load ``function`` and return its descriptor."""


class Attachment:
    """Descriptors that keep a program attached to sites."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []


class UprobeMulti:
    """Attaches through BPF_TRACE_UPROBE_MULTI links."""

    name = "uprobe_multi"
    slow_to_detach = False

    def load(self, program: Loadable, function: str) -> int:
        """Load the program for ``attach``; raises BpfError if the kernel rejects it."""
        return program.load(function, attach_type=sys_.ATTACH_TRACE_UPROBE_MULTI)

    def attach(
        self,
        program: Loadable,
        function: str,
        path: str,
        points: Sequence[Point],
        pid: int | None,
    ) -> Attachment:
        """Attach ``function`` to the points of a file.

        Args:
            program: The program.
            function: Name of its function.
            path: Path of the file.
            points: The sites.
            pid: The only process to trace; None for all that map the file.

        Raises:
            NoSuchTarget: The process has exited.
            NotPermitted: The tracer lacks the rights.
            BpfError: The kernel rejects the program or a site.
        """
        attach_type = sys_.ATTACH_TRACE_UPROBE_MULTI
        program_fd = self.load(program, function)
        count = len(points)
        offsets = (ctypes.c_uint64 * count)(*(p.offset for p in points))
        semaphores = (ctypes.c_uint64 * count)(*(p.semaphore_offset for p in points))
        cookies = (ctypes.c_uint64 * count)(*(p.number for p in points))
        name = ctypes.create_string_buffer(os.fsencode(path))
        attr = sys_.attributes(
            "IIIIQQQQIII",
            program_fd,
            0,
            attach_type,
            0,
            sys_.address(name),
            ctypes.addressof(offsets),
            ctypes.addressof(semaphores),
            ctypes.addressof(cookies),
            count,
            0,
            pid or 0,
        )
        fd = sys_.raw_bpf(sys_.LINK_CREATE, attr)
        if fd < 0:
            raise _cannot_attach(-fd, pid)
        return Attachment([fd])


class PerfUprobes:
    """Attaches one perf uprobe per site; works on kernels before 6.10."""

    name = "perf uprobes"
    slow_to_detach = True

    def load(self, program: Loadable, function: str) -> int:
        return program.load(function, site=0)

    def attach(
        self,
        program: Loadable,
        function: str,
        path: str,
        points: Sequence[Point],
        pid: int | None,
    ) -> Attachment:
        attachment = Attachment([])
        try:
            for point in points:
                program_fd = program.load(function, site=point.number)
                attachment._fds.append(self._one(program_fd, path, point, pid))
        except BaseException:
            attachment.close()
            raise
        return attachment

    def _one(self, program_fd: int, path: str, point: Point, pid: int | None) -> int:
        name = ctypes.create_string_buffer(os.fsencode(path))
        attr = ctypes.create_string_buffer(
            struct.pack(
                "<IIQQQQQIIQQ",
                int(_UPROBE_PMU.read_text()),
                112,
                point.semaphore_offset << 32,
                1,  # sample period
                0,
                0,
                0,
                1,  # wake up at every event
                0,
                sys_.address(name),
                point.offset,
            ),
            112,
        )
        fd = sys_.perf_event_open(
            attr,
            -1 if pid is None else pid,
            0 if pid is None else -1,
            -1,
            _PERF_FLAG_FD_CLOEXEC,
        )
        if fd < 0:
            raise _cannot_attach(-fd, pid)
        try:
            fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
            fcntl.ioctl(fd, _IOC_ENABLE, 0)
        except OSError as error:
            os.close(fd)
            raise _cannot_attach(error.errno or 0, pid) from error
        return fd


Attacher = UprobeMulti | PerfUprobes


class RawTracepoint:
    """A program attached to a raw tracepoint of the kernel."""

    def __init__(self, program: Program, function: str, tracepoint: str) -> None:
        fd = program.load(function, sys_.PROG_TYPE_RAW_TRACEPOINT)
        name = ctypes.create_string_buffer(tracepoint.encode())
        attr = sys_.attributes("QI", sys_.address(name), fd)
        self._fd = sys_.bpf(
            sys_.RAW_TRACEPOINT_OPEN, attr, f"attach to the tracepoint {tracepoint}"
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


Attached = TypeVar("Attached")
Way = TypeVar("Way")


def attach_first(
    stack: ExitStack,
    ways: Sequence[Way],
    attach: Callable[[ExitStack, Way], Attached],
) -> Attached:
    """Attach in the first way that this kernel supports.

    Args:
        stack: Gets the cleanup of the successful attempt.
        ways: The ways in order of preference.
        attach: Attaches in a way, and registers the cleanup with its stack.

    Raises:
        NotPermitted: The tracer lacks the rights.
        BpfError: The error of the last way.
    """
    for way in ways:
        with ExitStack() as attempt:
            try:
                found = attach(attempt, way)
            except NotPermitted:
                raise
            except BpfError:
                if way is ways[-1]:
                    raise
                continue
            stack.push(attempt.pop_all())
            return found
    raise AssertionError("one of the two returns or raises")


class PerfTracepoint(Attachment):
    """A program attached to a tracepoint of the kernel; it gets the record.

    ``number`` is the tracepoint's id in tracefs. The program runs for hits on all
    processors, although perf requires the number of one.
    """

    def __init__(self, program: Program, function: str, number: int) -> None:
        attr = ctypes.create_string_buffer(
            struct.pack("<IIQQ", _TYPE_TRACEPOINT, 112, number, 1), 112
        )
        program_fd = program.load(function, sys_.PROG_TYPE_TRACEPOINT)
        cpu = online_processors()[0]
        super().__init__([_perf_event(attr, cpu, program_fd, "use this tracepoint")])


def _perf_event(
    attr: ctypes.Array[ctypes.c_char], cpu: int, program_fd: int, doing: str
) -> int:
    """Open a processor's event that runs a program, and return its descriptor."""
    fd = sys_.perf_event_open(attr, -1, cpu, -1, _PERF_FLAG_FD_CLOEXEC)
    if fd < 0:
        raise sys_.refused(-fd, doing)
    try:
        fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
        fcntl.ioctl(fd, _IOC_ENABLE, 0)
    except OSError as error:
        os.close(fd)
        raise sys_.refused(error.errno or 0, doing) from error
    return fd


class PerfTicks:
    """A program that runs at ticks of every processor's clock.

    Each processor has two timers in a random ratio, whose rates sum to the requested
    rate. Regular ticks could synchronize with the scheduler's time slices or with a
    periodic program. A faster timer with randomly chosen ticks is worse: each of its
    interrupts also wakes threads whose sleep is almost over (timer slack, 50 µs), so
    their next run is always sampled at the same few moments.

    The timers use the kernel's software clock, which also works in virtual machines.

    Args:
        program: The program.
        function: Name of its function.
        period: Average ns between two ticks of a processor.
    """

    def __init__(self, program: Program, function: str, period: int) -> None:
        self._fds: list[int] = []
        program_fd = program.load(function, sys_.PROG_TYPE_PERF_EVENT)
        try:
            for cpu in online_processors():
                share = random.uniform(*_SLOWER_TIMER)
                for own in (period / share, period / (1 - share)):
                    self._open(cpu, round(own), program_fd)
        except BaseException:
            self.close()
            raise

    def _open(self, cpu: int, period: int, program_fd: int) -> None:
        attr = ctypes.create_string_buffer(
            struct.pack("<IIQQ", _TYPE_SOFTWARE, 112, _CPU_CLOCK, period), 112
        )
        doing = "open a perf event of each processor"
        self._fds.append(_perf_event(attr, cpu, program_fd, doing))

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def online_processors() -> list[int]:
    """Return the numbers of the online processors."""
    found: list[int] = []
    for part in _ONLINE.read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def choose_attacher() -> Attacher:
    """Return the fastest attacher of this kernel; RBTRACE_ATTACH=perf forces perf.

    Raises:
        BpfError: The kernel lacks uprobes.
    """
    if os.environ.get("RBTRACE_ATTACH") != "perf" and has_uprobe_multi():
        return UprobeMulti()
    if not _UPROBE_PMU.exists():
        raise BpfError(
            "this kernel has no uprobes",
            "Use a kernel with CONFIG_UPROBE_EVENTS; `rbtrace-py doctor` shows"
            " what is available",
        )
    return PerfUprobes()


def has_uprobe_multi() -> bool:
    """Return whether this kernel has uprobe_multi and filters it by process.

    Linux 6.6 to 6.9 treat the pid as a thread id. From 6.10, try to create an invalid
    link, which the kernel must reject.

    Without a program, the kernel returns EBADF before other checks, so load a minimal
    program. A kernel without uprobe_multi rejects its attach type.
    """
    if _kernel_version() < _FILTERS_BY_PROCESS:
        return False
    try:
        fd = sys_.load_program(
            sys_.PROG_TYPE_KPROBE, RETURN_0, sys_.ATTACH_TRACE_UPROBE_MULTI, "probe"
        )
    except BpfError:
        return False
    try:
        # EINVAL means that the link type is unknown, or that sites are missing. An
        # invalid path distinguishes the two.
        offset = (ctypes.c_uint64 * 1)(1)
        name = ctypes.create_string_buffer(b"/dev/null")
        attr = sys_.attributes(
            "IIIIQQQQIII",
            fd,
            0,
            sys_.ATTACH_TRACE_UPROBE_MULTI,
            0,
            sys_.address(name),
            ctypes.addressof(offset),
            0,
            0,
            1,
            0,
            0,
        )
        return sys_.raw_bpf(sys_.LINK_CREATE, attr) == -errno.EBADF
    finally:
        os.close(fd)


def _kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _cannot_attach(error: int, pid: int | None) -> Exception:
    if error == errno.ESRCH and pid is not None:
        return NoSuchTarget(f"process {pid} is gone")
    if error == _ENOTSUPP:
        return BpfError(
            "cannot attach to the probe: the kernel cannot probe this instruction"
        )
    return sys_.refused(error, "attach to the probe")
