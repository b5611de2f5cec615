"""Input and output of the walk of Ruby stacks in the kernel."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

MOST_KERNEL_FRAMES = 127
"""Maximum number of kernel frames: the default of kernel.perf_event_max_stack."""


S64 = Annotated[int, "q"]
U64 = Annotated[int, "Q"]
U32 = Annotated[int, "I"]
"""Integers in C structs, by their codes in the module ``struct``."""


class WalkLayout(NamedTuple):
    """Addresses and offsets in a process's Ruby that the kernel's walk requires.

    ``struct ruby`` (``bpf/programs/contexts.h``) has the same fields in this order.

    Attributes:
        tls: Offset from a thread's fs base of the word with the execution context (if
            negative) or the thread (if positive); 0 if unknown.
        gc_place: Address of the word whose bits ``gc_mask`` are set during a
            collection; 0 if unknown.
        gc_mask: See ``gc_place``.
        gc_count: Address of the number of collections so far; 0 if unknown.
        local: VM_ENV_FLAG_LOCAL.
        running: Address of the word with the thread that has the GVL, up to Ruby 2.7.
        ec_stack: Offset in an execution context, in words, like the other ``ec_``.
        words: Size of a control frame in words.
        pc: Offset in a control frame, in words, like ``sp``, ``iseq``, ``ep``, ``jit``.
        jit: Offset of jit_return; ``words`` if the structure lacks it.
        has_zjit: 1 if ZJIT is on, so that the pc of an innermost frame is stale (4.0).
        th_ec: Offset in a thread, in bytes, like ``th_ractor`` and ``gvl_node``.
        imemo_mask: Bits of an object's flags that are ``imemo_ment`` if the object is a
            method entry.
        follows: 1 if children are walked, too.
        ractor_ec: Offset in a ractor, in bytes, of the execution context that runs.
        gvl_queue: Offset in a ractor of the queue for the GVL; 0 if unknown.
        gvl_node: Offset in a thread of its place in that queue; 0 if unknown.
        ractor_objspace: Offset in a ractor of its object space; 0 if ractors share one.
        gc_flags: Offset in that object space of the word with the bits ``gc_mask``.
        queue: Address of the queue for the GVL, up to Ruby 2.7.
        zjit: Address of the word that is not 0 while ZJIT keeps pc and iseq of its
            frames in JITFrames (4.1); 0 if it never does.
        holder: Offset in a ractor, or up to Ruby 2.7 the address, of the word with the
            thread that has the GVL; 0 if unknown.
    """

    tls: S64
    gc_place: U64
    gc_mask: U64
    gc_count: U64
    local: U64
    running: U64
    ec_stack: U32
    ec_size: U32
    ec_cfp: U32
    ec_thread: U32
    ec_fiber: U32
    words: U32
    pc: U32
    sp: U32
    iseq: U32
    ep: U32
    jit: U32
    has_zjit: U32
    th_ec: U32
    imemo_mask: U32
    imemo_ment: U32
    follows: U32
    th_ractor: U32
    ractor_ec: U32
    gvl_queue: U32
    gvl_node: U32
    ractor_objspace: U32
    gc_flags: U32
    queue: U64
    zjit: U64
    holder: U64


class Weighing(IntEnum):
    """The weight of a stack: WEIGHING in ``bpf/programs/stacks.c``."""

    RUN_TIME = 0
    """One sampling period at each tick of a processor's clock."""
    OFF_TIME = 1
    """The ns off the CPU."""
    ALL_TIME = 2
    """``RUN_TIME`` and ``OFF_TIME`` together."""
    EVENTS = 3
    """One per event, or the value of an argument of the event."""

    GVL_TIME = 4
    """The ns with the GVL, times the number of threads that wait for it meanwhile."""

    @property
    def has_switches(self) -> bool:
        return self in (Weighing.OFF_TIME, Weighing.ALL_TIME, Weighing.GVL_TIME)

    @property
    def has_ticks(self) -> bool:
        return self in (Weighing.RUN_TIME, Weighing.ALL_TIME, Weighing.GVL_TIME)

    @property
    def has_run_time(self) -> bool:
        """True if ticks represent the run time of their threads."""
        return self in (Weighing.RUN_TIME, Weighing.ALL_TIME)


class HeldGvl(NamedTuple):
    """A GVL that a thread holds: address of its queue, and number of waiters."""

    queue: int
    waiters: int


class OffCpu(NamedTuple):
    """The reason why a thread left its CPU, from the kernel's state.

    Attributes:
        is_ready: True if it is runnable, but another thread got the CPU.
        is_queued: True if it is in the queue for the GVL.
        is_uninterruptible: True if signals do not end the wait.
        file_type: ``stat.S_IFMT`` of the awaited descriptor; 0 if none or unknown.
        call: Number of the system call; None if unknown.
        is_stopped: True if a signal or a debugger stopped it.
    """

    is_ready: bool
    is_queued: bool
    is_uninterruptible: bool
    file_type: int
    call: int | None
    is_stopped: bool = False


class WalkedStack(NamedTuple):
    """One stack of one thread, as walked by the kernel.

    Attributes:
        key: Identical for equal stacks; empty if the frames could not be read.
        time_ns: CLOCK_MONOTONIC of the walk, or of the end of a time off the CPU.
        pid: Process id.
        tid: Kernel thread id.
        thread: Address of the rb_thread_t.
        fiber: Address of the rb_fiber_t.
        frames: Four words per frame, newest first: iseq, pc (0 if stale), method entry
            (or a cref or svar), and flags. None if the frames were sent before with the
            same key. If pc is 1, the first word is the address of a JITFrame: 0 for a C
            function, 8 for an unreadable address.
        collecting: 0, or 1 + ``enum gc_mode`` of the collection in progress.
        is_cut: True if older frames are missing.
        weight: Weight in ns or events; 0 if the stack was sent only to be named. A
            tick weighs one sampling period until the run time of its thread is known.
        off_cpu: The reason for a time off the CPU; None for a tick or an event.
        kernel_frames: Addresses of the kernel's frames, newest first. Sent together
            with ``frames``.
        collection: ``RubyVM.collection`` at the time of the walk; 0 if unknown. Sent
            together with ``frames``.
        ticks: Number of ticks; 0 for a time off the CPU or an event.
    """

    key: bytes
    time_ns: int
    pid: int
    tid: int
    thread: int
    fiber: int
    frames: memoryview | None
    collecting: int
    is_cut: bool
    weight: int
    off_cpu: OffCpu | None
    kernel_frames: memoryview | None = None
    collection: int = 0
    ticks: int = 0
