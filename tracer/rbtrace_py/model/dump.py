"""Stacks of all threads of Ruby processes, or of a core file, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.model.stacks import RubyThread, SampleFlags, Stack, ThreadState
from rbtrace_py.model.waits import Wait, Waiter


@dataclass(frozen=True, slots=True)
class Local:
    """An argument or a local variable, its value as text; safe to show."""

    name: str
    value: str


Locals = tuple[tuple[Local, ...], ...]
"""Those of each frame of a stack, in the order of its frames; empty: not wanted, or
not known."""


@dataclass(frozen=True, slots=True)
class DumpedFiber:
    """A fiber that no thread is running; ``stack`` None: it could not be read.

    wait: what it waits for in its thread's fiber scheduler, None: nothing known
    """

    address: int
    stack: Stack | None
    flags: SampleFlags = SampleFlags.CLEAN
    wait: Wait | None = None
    locals: Locals = ()


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """One thread; ``stack`` None: it could not be read.

    on_cpu: None where that is not known, as in a core file
    kernel_state: the kernel's letter for it, empty where not known
    fiber: address of the fiber it runs, 0 where not known
    fibers: those that it has suspended
    wait: what it waits for, None: it runs
    gvl_waiters: how many threads wait for the GVL that it holds
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
    """One process or core file.

    core: path of the file, None for a process; all texts are safe to show
    pid: 0 where a core does not tell
    time_ns: when it was read, None for a core
    stopped_ns: how long it was stopped for that, None if it was not
    signal: number of the signal that a core is of, 0 for none
    notes: what a user should know, a line each
    folder: the working directory, where it is known
    deadlocks: cycles of threads and fibers that wait for one another
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
        """The number of stacks that could not be read."""
        stacks = [thread.stack for thread in self.threads]
        stacks += [fiber.stack for thread in self.threads for fiber in thread.fibers]
        return sum(stack is None for stack in stacks)
