"""The cost of a hit without its program: the trap into the kernel and back.

The cost depends on the processor, the kernel, and its mitigations of processor bugs. It
is measured in this process.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import RETURN_0, Attacher, Point
from rbtrace_py.errors import BpfError
from rbtrace_py.linux.closing import Closing

_HITS, _TRIES = 2000, 5
_LOOP = bytes.fromhex(
    "89f9"  # mov ecx, edi
    "90"  # nop: like the gem's and Ruby's built-in probes
    "ffc9"  # dec ecx
    "75fb"  # jnz to the nop
    "c3"  # ret
)
_NOP = 2
_MFD_EXEC = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def trap_ns(attacher: Attacher) -> float:
    """Return the ns per hit of a program that returns immediately.

    This is the fastest of several runs, because other load can only slow down a run.

    Raises:
        RbtraceError: The cost cannot be measured.
    """
    with _Nothing() as program, _loop() as (path, run):
        point = Point(_NOP, 0, 0)
        attached = attacher.attach(program, "nothing", path, [point], os.getpid())
        try:
            return min(_time(run) for _ in range(_TRIES)) / _HITS
        finally:
            attached.close()


class _Nothing(Closing):
    """A program that returns immediately; loaded once."""

    _fd: int | None = None

    def load(
        self,
        function: str,
        program_type: int = sys_.PROG_TYPE_KPROBE,
        attach_type: int = 0,
        site: int = 0,
    ) -> int:
        if self._fd is None:
            self._fd = sys_.load_program(program_type, RETURN_0, attach_type, function)
        return self._fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _time(run: Callable[[int], object]) -> int:
    start = time.perf_counter_ns()
    run(_HITS)
    return time.perf_counter_ns() - start


def _code_file() -> int:
    """Create a file in memory that may be executed; newer kernels require a flag."""
    for flags in (os.MFD_CLOEXEC | _MFD_EXEC, os.MFD_CLOEXEC):
        try:
            return os.memfd_create("rbtrace-trap", flags)
        except OSError as error:
            if error.errno != errno.EINVAL:  # before Linux 6.3
                raise BpfError(f"cannot make a file: {error.strerror}") from error
    raise BpfError("cannot make a file in memory")


@contextmanager
def _loop() -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield a file with the loop, and the loop as a function of its iterations."""
    fd = _code_file()
    try:
        os.write(fd, _LOOP)
        size = mmap.PAGESIZE
        # The kernel rejects uprobes in writable mappings.
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        place = _libc.mmap(None, size, protection, mmap.MAP_PRIVATE, fd, 0)
        if place == _MAP_FAILED:
            raise BpfError(f"cannot map code: {os.strerror(ctypes.get_errno())}")
        try:
            yield f"/proc/self/fd/{fd}", ctypes.CFUNCTYPE(None, ctypes.c_int)(place)
        finally:
            _libc.munmap(place, size)
    finally:
        os.close(fd)
