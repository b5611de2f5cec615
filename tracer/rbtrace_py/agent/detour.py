"""Making a stopped thread call functions of its process, and restoring it.

For each call, a signal frame with the complete state of the thread is written to its
stack. The function returns into ``rt_sigreturn``, which restores this state. One change
of registers therefore starts the whole detour, and the thread returns from it even if
we die. If we live, we catch the thread at the entry of ``rt_sigreturn``. We then start
the next call, or restore what a frame cannot contain: the system call that the thread
was in, which the kernel resumes with its remaining timeout.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace import signal_frame
from rbtrace_py.linux.ptrace.restart import as_if_not_stopped, without_kernel
from rbtrace_py.linux.ptrace.signal_frame import SIGRETURN, Registers
from rbtrace_py.linux.ptrace.tracee import Tracee, TraceeStop

_USER_CODE = 0x33
"""``__USER_CS``: 64-bit code."""
_ROOM = 40 << 10
"""Bytes of stack required: frames, vector registers, and the functions."""
_STOPPING = frozenset({19, 20, 21, 22})
_FAULTS = frozenset({4, 5, 7, 8, 11, 31})
"""SIGILL, TRAP, BUS, FPE, SEGV, SYS."""
_ALL = (1 << 64) - 1
_BLOCKED = _ALL & ~sum(1 << number - 1 for number in _FAULTS)


class Busy(RbtraceError):
    """The thread cannot be diverted now; retry later."""


class Stopped(RbtraceError):
    """The process was stopped by a signal just now."""


class Late(RbtraceError):
    """The thread did not stop in time; it continues, and returns, without us."""


class Detour:
    """The stopped main thread: call ``stop``, any number of ``run``, and ``finish``.

    Args:
        process: The process.
        tracee: Its main thread.
        memory: Its memory.
        restore: Address of code that calls ``rt_sigreturn``.
        deadline: Latest time (``time.monotonic``) to wait for a stop.
        at: Called at each step. Tests kill us there.

    Attributes:
        stopped_ns: Duration of the stop in ns, once it is over.
    """

    def __init__(
        self,
        process: Process,
        tracee: Tracee,
        memory: MemoryFile,
        restore: int,
        deadline: float,
        at: Callable[[str], None],
    ) -> None:
        self._process = process
        self._tracee = tracee
        self._memory = memory
        self._restore = restore
        self._deadline = deadline
        self._at = at
        self._reader = ProcessMemory(process.pid, process)
        self._is_away = False
        self._since = 0
        self.stopped_ns = 0

    @property
    def is_in_call(self) -> bool:
        """True if it was stopped in a system call, where it may have slept."""
        return not self._registers.orig_rax >> 63

    # ------------------------------------------------------------------- there

    def stop(self) -> None:
        """Stop the thread and save its state.

        Raises:
            Busy: The thread cannot be diverted here. It continues unchanged.
            Stopped: The process was stopped by a signal. It continues unchanged.
            RbtraceError: The thread did not stop in time.
        """
        self._since = time.monotonic_ns()
        self._tracee.interrupt()
        self._at("interrupted")
        stop = self._await_interrupt()
        self._at("stopped")
        self._registers = self._tracee.registers()
        try:
            if stop in _STOPPING:
                raise Stopped(f"process {self._tracee.tid} was stopped meanwhile")
            self._check()
            self._xstate = self._tracee.xstate()
            self._mask = self._tracee.mask()
            area = signal_frame.vector_area(self._xstate)
            self._vectors = signal_frame.below(self._registers) - len(area) & -64
            self._floor = self._vectors
            self._memory.write(self._vectors, area)
        except BaseException:
            self._release()
            raise
        self._at("saved")

    def _await_interrupt(self) -> int:
        """Wait for our stop, delivering signals that come first; return its signal."""
        while True:
            stop = self._wait()
            if stop.is_interrupt:
                return stop.signal
            self._tracee.resume(stop.signal if stop.is_delivery else 0)

    def _check(self) -> None:
        """Raise Busy if the thread cannot be diverted here."""
        registers = self._registers
        if registers.cs != _USER_CODE:
            raise self._busy("it runs 32-bit code")
        if self._is_in_rseq(registers.rip):
            raise self._busy("it is in a restartable sequence (rseq)")
        if not self._has_room(signal_frame.below(registers)):
            raise self._busy("its stack has no free space")

    def _busy(self, why: str) -> Busy:
        text = f"cannot redirect process {self._tracee.tid}: {why}"
        return Busy(text, "Try again")

    def _is_in_rseq(self, rip: int) -> bool:
        """Return whether ``rip`` is in an rseq section (``struct rseq_cs``)."""
        area = self._tracee.rseq_area()
        if not area:
            return False
        (section,) = struct.unpack("<Q", self._memory.read(area + 8, 8))
        if not section:
            return False
        _, start, length, _ = struct.unpack("<4Q", self._memory.read(section, 32))
        return bool(0 <= rip - start <= length)

    def _has_room(self, top: int) -> bool:
        """Return whether the stack has space. The main stack may also grow."""
        try:
            self._reader.read(top - _ROOM, _ROOM)
        except RbtraceError:
            place = (m for m in mappings(self._process) if m.start <= top < m.end)
            return any(mapping.path == b"[stack]" for mapping in place)
        return True

    def reserve(self, size: int) -> int:
        """Reserve ``size`` zero bytes on its stack, and return their address."""
        self._floor = self._floor - size & -16
        self._memory.write(self._floor, bytes(size))
        return self._floor

    def read(self, address: int, size: int) -> bytes:
        """Read bytes of its memory."""
        return self._memory.read(address, size)

    def run(self, function: int, *arguments: int) -> None:
        """Make the thread call a function; the return value is lost.

        Afterwards the thread is stopped, ready for another ``run`` or ``finish``.
        """
        # Stay below the stack that an earlier run may need to return.
        frame_at = (self._floor & -16) - signal_frame.FRAME_SIZE
        top = self._floor = frame_at - 8
        home = without_kernel(self._registers)
        frame = signal_frame.frame(home, self._mask, self._vectors)
        self._memory.write(top, struct.pack("<Q", self._restore) + frame)
        self._at("written")
        self._tracee.set_registers(self._registers.calling(function, arguments, top))
        self._is_away = True
        self._at("sent")
        # After set_registers, because the frame restores the mask.
        self._tracee.set_mask(_BLOCKED)
        self._at("masked")
        self._follow(frame_at)
        self._at("returning")

    def _follow(self, frame_at: int) -> None:
        """Follow the thread to the ``rt_sigreturn`` with the frame at ``frame_at``."""
        signal = 0
        while True:
            self._tracee.resume_to_call(signal)
            stop = self._wait()
            signal = 0
            if stop.is_delivery:
                if stop.signal in _FAULTS:
                    self._rescue(stop.signal)
                signal = stop.signal
            elif stop.is_call:
                self._at("call")
                registers = self._tracee.registers()
                if registers.orig_rax == SIGRETURN and registers.rsp == frame_at:
                    return

    def _rescue(self, signal: int) -> None:
        """Restore the thread after a fault in a called function, and raise."""
        self._restore_all(as_if_not_stopped(self._registers))
        self._detach()
        raise RbtraceError(
            f"process {self._tracee.tid}: signal {signal} during a call into Ruby",
            "Its Ruby is not as expected; the process was restored",
        )

    # -------------------------------------------------------------------- back

    def finish(self) -> None:
        """Restore the thread and release it."""
        if self._is_away:
            self._come_back()
        self._release()
        self._at("detached")

    def _come_back(self) -> None:
        """Leave its last ``rt_sigreturn``, which is skipped, for a stop like the first.

        Only at such a stop does the kernel resume the system call that was interrupted.
        If we do not get that far, the thread continues as the frame requires.
        """
        self._restore_all(without_kernel(self._registers))
        self._tracee.interrupt()
        self._at("interrupted again")
        self._tracee.resume()
        self._at("going back")
        self._await_interrupt()
        self._at("stopped again")
        self._is_away = False

    def _restore_all(self, registers: Registers) -> None:
        """Restore the state. The frame is needed until the last step."""
        self._tracee.set_xstate(self._xstate)
        self._at("vectors restored")
        self._tracee.set_mask(self._mask)
        self._at("mask restored")
        self._tracee.set_registers(registers)
        self._at("registers restored")

    def _release(self) -> None:
        self._tracee.set_registers(as_if_not_stopped(self._registers))
        self._at("restored")
        self._detach()

    def _detach(self) -> None:
        # Measure first: the released thread may get this CPU.
        self.stopped_ns = time.monotonic_ns() - self._since
        self._tracee.detach()

    def _wait(self) -> TraceeStop:
        stop = self._tracee.wait(self._deadline)
        if stop is None:
            raise Late(
                f"process {self._tracee.tid} could not be paused in time",
                "Try again: it may be deep in the kernel, or frozen (docker pause)",
            )
        if stop.is_exec:
            self._tracee.detach()
            raise RbtraceError(f"process {self._tracee.tid} now runs another program")
        return stop
