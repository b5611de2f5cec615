"""A thread stopped by ptrace that calls functions of its program and returns.

This is for tests only: a tracer that dies during a call takes the target with it.
"""

from __future__ import annotations

import time

from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.restart import as_if_not_stopped
from rbtrace_py.linux.ptrace.signal_frame import Registers, below
from rbtrace_py.linux.ptrace.tracee import Tracee, TraceeStop

_SIGSEGV = 11
_HOME = 0x1000
"""The return address of a call. Nothing can be mapped there, so the return faults."""
_SECONDS = 20.0


class Fault(Exception):
    """The function crashed, and the thread was restored."""


class StoppedThread:
    """The main thread of ``process``, seized. It runs until ``stop``."""

    def __init__(self, process: Process) -> None:
        self._tracee = Tracee(process)
        self._memory = MemoryFile(process)

    def stop(self) -> Registers:
        """Stop it wherever it is. Earlier signals are delivered to it."""
        self._tracee.interrupt()
        stop = self._wait()
        while not stop.is_interrupt:
            self._tracee.resume(stop.signal if stop.is_delivery else 0)
            stop = self._wait()
        self.registers = self._tracee.registers()
        return self.registers

    def resume(self) -> None:
        """Let it continue from where it was stopped."""
        self._tracee.set_registers(as_if_not_stopped(self.registers))
        self._tracee.resume()

    def call(self, function: int, *arguments: int, room: int) -> int:
        """Call ``function`` and return its result. It may use ``room`` bytes that
        ``reserved`` names. The thread is then restored. Raises Fault."""
        xstate, mask = self._tracee.xstate(), self._tracee.mask()
        top = (self.reserved(room) & -16) - 8
        self._memory.write(top, _HOME.to_bytes(8, "little"))
        self._tracee.set_mask((1 << 64) - 1 & ~(1 << _SIGSEGV - 1))
        self._tracee.set_registers(self.registers.calling(function, arguments, top))
        self._tracee.resume()
        stop = self._wait()
        after = self._tracee.registers()
        self._tracee.set_xstate(xstate)
        self._tracee.set_mask(mask)
        self._tracee.set_registers(self.registers)
        if stop.signal != _SIGSEGV or after.rip != _HOME:
            raise Fault(f"signal {stop.signal} at {after.rip:#x}")
        return after.rax

    def write(self, address: int, word: int) -> None:
        """Write a word of its memory."""
        self._memory.write(address, word.to_bytes(8, "little"))

    def reserved(self, room: int) -> int:
        """Return the address of ``room`` bytes below the used part of its stack."""
        return below(self.registers) - room & -16

    def _wait(self) -> TraceeStop:
        stop = self._tracee.wait(time.monotonic() + _SECONDS)
        assert stop is not None, "it did not stop"
        return stop

    def close(self) -> None:
        self._memory.close()
