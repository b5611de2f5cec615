"""Programs put on sites of files.

One ``uprobe_multi`` link a file where the kernel has it (6.10): hundreds of
sites come and go in milliseconds. Else a perf uprobe a site, whose detaching
takes the kernel about a tenth of a second each. Either is a descriptor: when
the tracer dies, the kernel takes the site, and the semaphore it counted up,
back to what they were.
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
"""A program of two instructions."""
_SLOWER_TIMER = (0.35, 0.45)
"""Part of a processor's ticks that the slower one of its two timers has."""
_ONLINE = Path("/sys/devices/system/cpu/online")
_FILTERS_BY_PROCESS = (6, 10)


@dataclass(frozen=True, slots=True)
class Point:
    """One site to put a program on.

    offset, semaphore_offset: bytes in the file (semaphore 0: none)
    number: its place in the ``sites`` map
    """

    offset: int
    semaphore_offset: int
    number: int


class Loadable(Protocol):
    """What is put on sites: a ``Program``, or less."""

    def load(
        self,
        function: str,
        program_type: int = ...,
        attach_type: int = ...,
        site: int = ...,
    ) -> int:
        """Return the descriptor of ``function``, loaded."""


class Attachment:
    """Descriptors that hold a program on sites."""

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
        """Load what ``attach`` will; raises BpfError where the kernel refuses it."""
        return program.load(function, attach_type=sys_.ATTACH_TRACE_UPROBE_MULTI)

    def attach(
        self,
        program: Loadable,
        function: str,
        path: str,
        points: Sequence[Point],
        pid: int | None,
    ) -> Attachment:
        """Put ``function`` on the points of the file at ``path``.

        pid: only this process; None: every process that maps the file
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
    """Attaches a perf uprobe a site; works on kernels before 6.10."""

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
    """A program on one of the kernel's own tracepoints."""

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
    """Attach in the first way that this kernel has; raises what the last one raises."""
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
    """A program at a tracepoint of the kernel, with its record.

    number: of the tracepoint, from tracefs

    It runs on all processors, whoever fires; perf wants the name of one.
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
    """Open an event of a processor that runs a program; the descriptor."""
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
    """A program run at ticks of every processor's clock.

    period: ns between two ticks, on average

    Each processor has two timers whose rates sum to the wanted one, in a ratio that is
    chosen at random. Ticks at regular times would keep step with the scheduler's time
    slices, or with the rhythm of a program. A faster timer of which random ticks are
    used is worse: each of its interrupts also wakes threads whose sleep is nearly over
    (timer slack, 50 µs), and their next run is then seen at the same few moments.

    The timers are of the kernel's software clock, which virtual machines have, too.
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
    """Return the numbers of the processors that are on."""
    found: list[int] = []
    for part in _ONLINE.read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def choose_attacher() -> Attacher:
    """The best this kernel has; RBTRACE_ATTACH=perf chooses the other."""
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
    """Does this kernel have uprobe_multi, and does it filter by process?

    Linux 6.6 to 6.9 take a pid for that of one thread. From 6.10 on the kernel is
    asked to make a link that can only be refused.

    With no program it says EBADF before anything else, so a program of two
    instructions is loaded; a kernel without uprobe_multi refuses that.
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
        # EINVAL: not known, or known and no sites given. A path that leads
        # nowhere tells the two apart.
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
