"""A stopped thread led through functions of its process, and back where it was.

Behind each function that it is led to stands, on its own stack, a signal frame with
everything that the thread had: the function returns into ``rt_sigreturn``, which puts
all that back. So one change of registers sends it the whole way, and it comes back
whether we live to see it or not. If we do, we meet it at the beginning of that call and
lead it on to the next function; or home, by putting back what no frame holds: that it
was in a system call, for the kernel to take up again with what time was left.
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
"""Bytes of stack that must be there: frames, vector registers, and the functions."""
_STOPPING = frozenset({19, 20, 21, 22})
_FAULTS = frozenset({4, 5, 7, 8, 11, 31})
"""SIGILL, TRAP, BUS, FPE, SEGV, SYS."""
_ALL = (1 << 64) - 1
_BLOCKED = _ALL & ~sum(1 << number - 1 for number in _FAULTS)


class Busy(RbtraceError):
    """Not here, but perhaps a moment later."""


class Stopped(RbtraceError):
    """It was stopped by a signal just now."""


class Late(RbtraceError):
    """It did not come where we waited for it; it goes on, and back, without us."""


class Detour:
    """The main thread, stopped; in order: ``stop``, any number of ``run``, ``finish``.

    restore: address of code that makes ``rt_sigreturn``
    at: told of each step; for tests, which kill us there
    stopped_ns: for how long it was kept, when that is over
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
        """Was it in a system call when it was stopped? Perhaps asleep there."""
        return not self._registers.orig_rax >> 63

    # ------------------------------------------------------------------- there

    def stop(self) -> None:
        """Stop it and keep what it has.

        Raises Busy where it cannot be led away, Stopped, RbtraceError in time if it
        does not stop; it goes on then as if nothing had been.
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
            self._let_go()
            raise
        self._at("saved")

    def _await_interrupt(self) -> int:
        """Signals that come first are its own. The signal of the stop that we want."""
        while True:
            stop = self._wait()
            if stop.is_interrupt:
                return stop.signal
            self._tracee.go_on(stop.signal if stop.is_delivery else 0)

    def _check(self) -> None:
        """Raise Busy unless it can be led away from where it is."""
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
        """``struct rseq_cs`` of the section: flags, start, length, where to go."""
        area = self._tracee.rseq_area()
        if not area:
            return False
        (section,) = struct.unpack("<Q", self._memory.read(area + 8, 8))
        if not section:
            return False
        _, start, length, _ = struct.unpack("<4Q", self._memory.read(section, 32))
        return bool(0 <= rip - start <= length)

    def _has_room(self, top: int) -> bool:
        """Guard pages cannot be read; the main stack grows where it is touched."""
        try:
            self._reader.read(top - _ROOM, _ROOM)
        except RbtraceError:
            place = (m for m in mappings(self._process) if m.start <= top < m.end)
            return any(mapping.path == b"[stack]" for mapping in place)
        return True

    def reserve(self, size: int) -> int:
        """Address of ``size`` zeros on its stack, for functions to write to."""
        self._floor = self._floor - size & -16
        self._memory.write(self._floor, bytes(size))
        return self._floor

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes that are there now."""
        return self._memory.read(address, size)

    def run(self, function: int, *arguments: int) -> None:
        """Lead it through a function; what that returns is lost.

        It stands when this comes back: for another ``run``, or ``finish``.
        """
        # Below what an earlier run may still need to find its way back.
        frame_at = (self._floor & -16) - signal_frame.FRAME_SIZE
        top = self._floor = frame_at - 8
        home = without_kernel(self._registers)
        frame = signal_frame.frame(home, self._mask, self._vectors)
        self._memory.write(top, struct.pack("<Q", self._restore) + frame)
        self._at("written")
        self._tracee.set_registers(self._registers.calling(function, arguments, top))
        self._is_away = True
        self._at("sent")
        # After, not before: it is the frame that puts the mask back.
        self._tracee.set_mask(_BLOCKED)
        self._at("masked")
        self._follow(frame_at)
        self._at("returning")

    def _follow(self, frame_at: int) -> None:
        """Watch it up to the ``rt_sigreturn`` whose frame is there."""
        signal = 0
        while True:
            self._tracee.go_on_to_call(signal)
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
        """A function of its own went wrong: take it out of there."""
        self._restore_all(as_if_not_stopped(self._registers))
        self._detach()
        raise RbtraceError(
            f"process {self._tracee.tid}: signal {signal} during a call into Ruby",
            "Its Ruby is not as expected; the process was restored",
        )

    # -------------------------------------------------------------------- back

    def finish(self) -> None:
        """Put it back where it was and let go."""
        if self._is_away:
            self._come_back()
        self._let_go()
        self._at("detached")

    def _come_back(self) -> None:
        """From its last ``rt_sigreturn``, which is not made, to a stop like the first.

        Only there does the kernel heed that it was in a system call; should we not
        get that far, it goes on as the frame would have had it.
        """
        self._restore_all(without_kernel(self._registers))
        self._tracee.interrupt()
        self._at("interrupted again")
        self._tracee.go_on()
        self._at("going back")
        self._await_interrupt()
        self._at("stopped again")
        self._is_away = False

    def _restore_all(self, registers: Registers) -> None:
        """The last step is the one from which the frame is not needed any more."""
        self._tracee.set_xstate(self._xstate)
        self._at("vectors restored")
        self._tracee.set_mask(self._mask)
        self._at("mask restored")
        self._tracee.set_registers(registers)
        self._at("registers restored")

    def _let_go(self) -> None:
        self._tracee.set_registers(as_if_not_stopped(self._registers))
        self._at("restored")
        self._detach()

    def _detach(self) -> None:
        # Before, as it may be it that gets the CPU then.
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
