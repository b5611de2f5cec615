"""One seized thread of another process: its stops, registers, and signal mask.

Only the thread that seized it may call these methods. When our thread ends, for any
reason, the kernel lets the other thread continue in its current state.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from typing import NamedTuple

from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.linux.process import Process, gone, parse_stat
from rbtrace_py.linux.ptrace.pause import WALL, ptrace, ptrace_value, seize_refused
from rbtrace_py.linux.ptrace.seccomp import Filter, parse_filter
from rbtrace_py.linux.ptrace.signal_frame import REGISTERS_SIZE, Registers

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETREGS, _SETREGS = 12, 13
_GETREGSET, _SETREGSET = 0x4204, 0x4205
_SEIZE, _INTERRUPT = 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_SECCOMP_GET_FILTER = 0x420C
_GET_RSEQ = 0x420F
"""Requests of include/uapi/linux/ptrace.h."""

_NT_X86_XSTATE = 0x202
_TRACESYSGOOD, _TRACEEXEC = 1, 1 << 4
_LARGEST_XSTATE = 1 << 16

_IN_CALL = 0x80
_EVENT_EXEC, _EVENT_STOP = 4, 128

_SPIN, _SOON = 0.00003, 0.001
"""Seconds of polling without pauses, and with short pauses. Most stops take 50 µs if
the other thread gets a CPU, which may be our own. A later stop is noticed at most a
tenth of its time late."""


class TraceeStop(NamedTuple):
    """The reason of a stop: a ``signal`` to be delivered, or a ptrace event."""

    signal: int
    event: int

    @property
    def is_interrupt(self) -> bool:
        """True after PTRACE_INTERRUPT or a group-stop."""
        return self.event == _EVENT_STOP

    @property
    def is_call(self) -> bool:
        """True at the entry or exit of a system call."""
        return self.event == 0 and bool(self.signal & _IN_CALL)

    @property
    def is_exec(self) -> bool:
        """True after the thread has executed another program."""
        return self.event == _EVENT_EXEC

    @property
    def is_delivery(self) -> bool:
        """True before a signal is delivered, which ``resume`` must pass on."""
        return self.event == 0 and not self.signal & _IN_CALL


class Tracee:
    """A seized thread of ``process``, which runs until ``interrupt``.

    Args:
        process: The process.
        tid: The thread; by default the main thread.

    Raises:
        NotPermitted: We may not trace the thread, or another process traces it.
        NoSuchTarget: The thread has ended. Every method may raise this.
    """

    def __init__(self, process: Process, tid: int | None = None) -> None:
        self._process = process
        self.tid = process.pid if tid is None else tid
        code = ptrace(_SEIZE, self.tid, 0, _TRACESYSGOOD | _TRACEEXEC)
        if code:
            raise seize_refused(process, self.tid)

    def interrupt(self) -> None:
        """Request a stop. It happens soon, even if the thread is asleep."""
        self._do(_INTERRUPT, 0, 0)

    def wait(self, deadline: float) -> TraceeStop | None:
        """Return the next stop; None at ``deadline`` (``time.monotonic``)."""
        began = time.monotonic()
        backoff = Backoff(0.0001, 0.005)
        while True:
            stop = self._poll()
            if stop is not None:
                return stop
            now = time.monotonic()
            if now > deadline:
                return None
            if now < began + _SPIN:
                continue
            if now < began + _SOON:
                time.sleep(0.00002)
            else:
                self._check_alive()
                time.sleep(backoff.pause())

    def _poll(self) -> TraceeStop | None:
        """Poll for a stop, without WEXITED: the exit must be left to the parent."""
        try:
            found = os.waitid(os.P_PID, self.tid, os.WSTOPPED | os.WNOHANG | WALL)
        except ChildProcessError:
            raise gone(self.tid) from None
        if found is None:
            return None
        return TraceeStop(found.si_status & 0xFF, found.si_status >> 8)

    def _check_alive(self) -> None:
        state = parse_stat(self._process.read(f"task/{self.tid}/stat")).state
        if state in "ZX":
            raise gone(self.tid)

    def resume(self, signal: int = 0) -> None:
        """Continue the thread, and deliver ``signal`` if it is not 0."""
        self._do(_CONT, 0, signal)

    def resume_to_call(self, signal: int = 0) -> None:
        """Continue the thread to the next entry or exit of a system call."""
        self._do(_SYSCALL, 0, signal)

    def detach(self, signal: int = 0) -> None:
        """Release the thread; it must be stopped."""
        self._do(_DETACH, 0, signal)

    def registers(self) -> Registers:
        """Return its general registers.

        This and the methods below require that the thread is stopped.
        """
        buffer = ctypes.create_string_buffer(REGISTERS_SIZE)
        self._do(_GETREGS, 0, ctypes.addressof(buffer))
        return Registers.unpack(buffer.raw)

    def set_registers(self, registers: Registers) -> None:
        """Set all general registers."""
        buffer = ctypes.create_string_buffer(registers.pack(), REGISTERS_SIZE)
        self._do(_SETREGS, 0, ctypes.addressof(buffer))

    def xstate(self) -> bytes:
        """Return its x87, vector, and extended registers in XSAVE format."""
        buffer = ctypes.create_string_buffer(_LARGEST_XSTATE)
        vector = _vector(buffer)
        self._do(_GETREGSET, _NT_X86_XSTATE, ctypes.addressof(vector))
        return buffer.raw[: struct.unpack("=QQ", vector.raw)[1]]

    def set_xstate(self, xstate: bytes) -> None:
        """Restore the registers that ``xstate`` returned."""
        vector = _vector(ctypes.create_string_buffer(xstate, len(xstate)))
        self._do(_SETREGSET, _NT_X86_XSTATE, ctypes.addressof(vector))

    def mask(self) -> int:
        """Return its blocked signals; bit 0 is signal 1."""
        buffer = ctypes.create_string_buffer(8)
        self._do(_GETSIGMASK, 8, ctypes.addressof(buffer))
        return int.from_bytes(buffer.raw, "little")

    def set_mask(self, mask: int) -> None:
        """Set its blocked signals. Pending signals that are unblocked are delivered."""
        buffer = ctypes.create_string_buffer(mask.to_bytes(8, "little"), 8)
        self._do(_SETSIGMASK, 8, ctypes.addressof(buffer))

    def rseq_area(self) -> int | None:
        """Return the address of its ``struct rseq``; 0: none; None: unknown.

        It is unknown before Linux 5.13.
        """
        buffer = ctypes.create_string_buffer(24)
        code = ptrace(_GET_RSEQ, self.tid, 24, ctypes.addressof(buffer))
        return None if code else int.from_bytes(buffer.raw[:8], "little")

    def filters(self) -> list[Filter]:
        """Return its seccomp filters, newest first; raises RbtraceError."""
        found: list[Filter] = []
        while (size := self._filter(len(found), 0)) is not None:
            buffer = ctypes.create_string_buffer(max(size, 1) * 8)
            self._filter(len(found), ctypes.addressof(buffer))
            found.append(parse_filter(buffer.raw[: size * 8]))
        return found

    def _filter(self, number: int, place: int) -> int | None:
        """Return a filter's number of instructions, or None without such a filter."""
        size, code = ptrace_value(_SECCOMP_GET_FILTER, self.tid, number, place)
        if code == errno.ENOENT:
            return None
        self._check(_SECCOMP_GET_FILTER, code)
        return size

    def _do(self, request: int, address: int, data: int) -> None:
        self._check(request, ptrace(request, self.tid, address, data))

    def _check(self, request: int, code: int) -> None:
        if code == errno.ESRCH:
            raise self._lost()
        if code:
            text = f"process {self.tid}: ptrace {request:#x}: {os.strerror(code)}"
            raise RbtraceError(text)

    def _lost(self) -> NoSuchTarget:
        """Return the error for a thread that ended or was killed while stopped."""
        return gone(self.tid)


def _vector(buffer: ctypes.Array[ctypes.c_char]) -> ctypes.Array[ctypes.c_char]:
    """Return a ``struct iovec`` of the buffer, which it keeps alive."""
    words = struct.pack("=QQ", ctypes.addressof(buffer), len(buffer))
    vector = ctypes.create_string_buffer(words, 16)
    vector.kept = buffer  # type: ignore[attr-defined]
    return vector
