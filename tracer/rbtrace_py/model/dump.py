"""Stacks of all threads of a Ruby process or a core file at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.model.stacks import RubyThread, SampleFlags, Stack, ThreadState
from rbtrace_py.model.waits import Wait, Waiter


@dataclass(frozen=True, slots=True)
class Local:
    """An argument or local variable, and its value as a string; safe to print."""

    name: str
    value: str


Locals = tuple[tuple[Local, ...], ...]
"""Local variables of each frame of a stack, in the order of its frames.

Empty if they were not requested or are unknown.
"""


@dataclass(frozen=True, slots=True)
class DumpedFiber:
    """A fiber that no thread is running.

    Attributes:
        address: Address of the fiber.
        stack: Its stack; None if it could not be read.
        flags: Flags of the stack.
        wait: Its wait in the thread's fiber scheduler; None if unknown.
        locals: Local variables of its frames.
    """

    address: int
    stack: Stack | None
    flags: SampleFlags = SampleFlags.CLEAN
    wait: Wait | None = None
    locals: Locals = ()


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """One thread.

    Attributes:
        thread: The thread.
        state: Its state.
        on_cpu: True if it is on a CPU; None if unknown, as in a core file.
        kernel_state: The kernel's letter for its state; empty if unknown.
        stack: Its stack; None if it could not be read.
        flags: Flags of the stack.
        fiber: Address of its current fiber; 0 if unknown.
        fibers: Its suspended fibers.
        wait: Its wait; None if it is not waiting.
        gvl_waiters: Number of threads that wait for the GVL while it holds the GVL.
        locals: Local variables of its frames.
    """

    thread: RubyThread
    state: ThreadState
    on_cpu: bool | None
    kernel_state: str
    stack: Stack | None
    flags: SampleFlags = SampleFlags.CLEAN
    fiber: int = 0
    fibers: tuple[DumpedFiber, ...] = ()
    wait: Wait | None = None
    gvl_waiters: int = 0
    locals: Locals = ()


@dataclass(frozen=True, slots=True)
class Dump:
    """One process or core file. All strings are safe to print.

    Attributes:
        pid: Process id; 0 if a core file lacks it.
        command: Command line.
        ruby_version: Ruby version.
        threads: The threads.
        core: Path of the core file; None for a process.
        time_ns: Time of the reading; None for a core file.
        stopped_ns: Time for which the process was stopped; None if it was not.
        signal: Number of the signal that caused the core dump; 0 for none.
        notes: Notes for the user, one line each.
        folder: Working directory; empty if unknown.
        deadlocks: Cycles of threads and fibers that wait for each other.
    """

    pid: int
    command: str
    ruby_version: str
    threads: tuple[DumpedThread, ...]
    core: str | None = None
    time_ns: int | None = None
    stopped_ns: int | None = None
    signal: int = 0
    notes: tuple[str, ...] = ()
    folder: str = ""
    deadlocks: tuple[tuple[Waiter, ...], ...] = ()

    @property
    def failed(self) -> int:
        """Number of stacks that could not be read."""
        stacks = [thread.stack for thread in self.threads]
        stacks += [fiber.stack for thread in self.threads for fiber in thread.fibers]
        return sum(stack is None for stack in stacks)
