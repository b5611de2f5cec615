"""Stacks, shared by all layers: frames, threads and their states, samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple


class FrameKind(IntEnum):
    """Kinds of frames, numbered as in recordings."""

    RUBY = 0
    C = 1
    NATIVE = 2
    GC = 3
    MARKER = 4
    KERNEL = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack; its strings are safe to print.

    Attributes:
        kind: Kind of frame.
        name: Qualified name (``Order#total``, ``block in Order#total``, ``<main>``).
        label: Name that the target's Ruby version uses.
        path: Source file; empty if unknown. A C function has its caller's.
        line: Line number; None if unknown. A C function has its caller's.
    """

    kind: FrameKind
    name: str
    label: str
    path: str
    line: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Frames, root first. Equal stacks are usually, but not always, the same object.

    Stacks are compared by identity, because hashing a stack of 500 frames is slow.
    """

    frames: tuple[Frame, ...]


GC_FRAME = Frame(FrameKind.GC, "(garbage collection)", "(garbage collection)", "", None)
CHANGED = Frame(
    FrameKind.MARKER, "(changed while read)", "(changed while read)", "", None
)
"""Replaces the newest frames if they changed during the read."""
RUN_QUEUE = Frame(FrameKind.MARKER, "(run queue)", "(run queue)", "", None)
"""Innermost frame of a runnable thread that waits for a CPU."""


def without_kernel(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return frames, root first, without the kernel frames at their end."""
    end = len(frames)
    while end and frames[end - 1].kind is FrameKind.KERNEL:
        end -= 1
    return frames[:end]


class ThreadState(IntEnum):
    """States of a thread, numbered as in recordings."""

    UNKNOWN = 0
    RUNNING = 1
    """On a CPU. A single sample of a thread, as in ``dump`` and ``top``, cannot
    distinguish this from RUNNABLE."""
    RUNNABLE = 4
    """Ready to run, but waiting for a CPU."""
    WAITING = 2
    """Waiting for the GVL."""
    SLEEPING = 3
    """Waiting for something else: time, a file, another thread."""


@dataclass(frozen=True, slots=True, eq=False)
class RubyThread:
    """A Ruby thread of a process; one object per thread, as long as it is known.

    Attributes:
        pid: Process id.
        tid: Kernel thread id; None if it has none or is unknown.
        address: Address of the rb_thread_t.
        name: Name of the thread.
        ractor: Number of its ractor; 1 for the main ractor.
        is_main: True for the main thread.
    """

    pid: int
    tid: int | None
    address: int
    name: str
    ractor: int = 1
    is_main: bool = False


class SampleFlags(IntFlag):
    """Flags of an incomplete sample, numbered as in recordings."""

    CLEAN = 0
    TRIMMED = 1
    """The newest frames changed during the read; a marker replaces them."""
    TRUNCATED = 2
    """The stack is too deep; the outermost frames are missing."""
    UNRESOLVED = 4
    """The code of a frame was freed before its name was read."""
    RUN_TIME = 8
    """Not counted as a sample: it adds run time, or time in a run queue."""
    ENDED = 16
    """Unresolved because the process had ended."""


class Sample(NamedTuple):
    """The stack and state of one thread at one moment.

    Attributes:
        time_ns: CLOCK_REALTIME of the reading.
        thread: The thread.
        state: Its state.
        stack: Its stack.
        weight: Weight in the unit of the profile (ns or events).
        flags: Flags of an incomplete sample.
        fiber: Address of the rb_fiber_t; 0 if unknown.
    """

    time_ns: int
    thread: RubyThread
    state: ThreadState
    stack: Stack
    weight: int = 1
    flags: SampleFlags = SampleFlags.CLEAN
    fiber: int = 0
