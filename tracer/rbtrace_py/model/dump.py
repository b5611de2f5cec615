"""Stacks of all threads of Ruby processes, or of a core file, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.model.stacks import RubyThread, SampleFlags, Stack, ThreadState


@dataclass(frozen=True, slots=True)
class DumpedFiber:
    """A fiber that no thread is running; ``stack`` None: it could not be read."""

    address: int
    stack: Stack | None
    flags: SampleFlags = SampleFlags.CLEAN


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """One thread; ``stack`` None: it could not be read.

    on_cpu: None where that is not known, as in a core file
    kernel_state: the kernel's letter for it, empty where not known
    fiber: address of the fiber it runs, 0 where not known
    fibers: those that it has suspended
    """

    thread: RubyThread
    state: ThreadState
    on_cpu: bool | None
    kernel_state: str
    stack: Stack | None
    flags: SampleFlags = SampleFlags.CLEAN
    fiber: int = 0
    fibers: tuple[DumpedFiber, ...] = ()


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

    @property
    def failed(self) -> int:
        """The number of stacks that could not be read."""
        stacks = [thread.stack for thread in self.threads]
        stacks += [fiber.stack for thread in self.threads for fiber in thread.fibers]
        return sum(stack is None for stack in stacks)
