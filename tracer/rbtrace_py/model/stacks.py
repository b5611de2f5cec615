"""Stacks as all layers name them: frames, threads and their states, samples."""

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
    """One frame of a stack; texts are safe to show.

    ``name`` is the qualified name (``Order#total``, ``block in Order#total``,
    ``<main>``), ``label`` what the target's own Ruby calls it. A C function has the
    path and line of its caller. ``path`` is empty and ``line`` None where unknown.
    """

    kind: FrameKind
    name: str
    label: str
    path: str
    line: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Frames, the root first. Equal ones are mostly, not always, the same object.

    Compared by identity, as a stack of 500 frames takes long to hash.
    """

    frames: tuple[Frame, ...]


GC_FRAME = Frame(FrameKind.GC, "(garbage collection)", "(garbage collection)", "", None)
CHANGED = Frame(
    FrameKind.MARKER, "(changed while read)", "(changed while read)", "", None
)
"""In place of the newest frames, which changed while they were read."""
RUN_QUEUE = Frame(FrameKind.MARKER, "(run queue)", "(run queue)", "", None)
"""Innermost frame of a thread that is ready to run, while another has the CPU."""


def without_kernel(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack's frames, the root first, without the kernel's at its end."""
    end = len(frames)
    while end and frames[end - 1].kind is FrameKind.KERNEL:
        end -= 1
    return frames[:end]


class ThreadState(IntEnum):
    """States of a thread, numbered as in recordings."""

    UNKNOWN = 0
    RUNNING = 1
    """On a CPU. A single look at a thread, as of ``dump`` and ``top``, cannot tell
    this from RUNNABLE."""
    RUNNABLE = 4
    """Ready to run, but another thread has the CPU."""
    WAITING = 2
    """Could run, but for the GVL."""
    SLEEPING = 3
    """Waits for something: time, a file, another thread."""


@dataclass(frozen=True, slots=True, eq=False)
class RubyThread:
    """A Ruby thread of a process; one object for each, as long as it is known.

    ``tid`` is the kernel's id, None where it has none or it is not known;
    ``address`` that of the VM's structure; ``ractor`` is 1 for the main one.
    """

    pid: int
    tid: int | None
    address: int
    name: str
    ractor: int = 1
    is_main: bool = False


class SampleFlags(IntFlag):
    """Flags for what a sample lacks, numbered as in recordings."""

    CLEAN = 0
    TRIMMED = 1
    """Its newest frames changed while they were read; a marker stands for them."""
    TRUNCATED = 2
    """It is deeper than what is read; the outermost frames are missing."""
    UNRESOLVED = 4
    """The code of a frame was gone before its name was read."""
    RUN_TIME = 8
    """It is not counted as a sample: it adds run time, or time in a run queue."""
    ENDED = 16
    """It is unresolved because its process had ended."""


class Sample(NamedTuple):
    """The stack and state of one thread at one moment.

    time_ns: CLOCK_REALTIME of the reading
    weight: weight in the unit of the profile (ns or events)
    fiber: address of the fiber's structure; 0: unknown
    """

    time_ns: int
    thread: RubyThread
    state: ThreadState
    stack: Stack
    weight: int = 1
    flags: SampleFlags = SampleFlags.CLEAN
    fiber: int = 0
