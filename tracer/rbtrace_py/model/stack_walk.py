"""The walk of Ruby stacks in the kernel: what it needs to know, and what it gives."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

MOST_KERNEL_FRAMES = 127
"""Kernel frames of a stack at most: the default of kernel.perf_event_max_stack."""


S64 = Annotated[int, "q"]
U64 = Annotated[int, "Q"]
U32 = Annotated[int, "I"]
"""Integers of structs in C, by their codes in the module ``struct``."""


class WalkLayout(NamedTuple):
    """A process's Ruby, as the kernel's walk needs it.

    It has the fields of ``struct ruby`` (``bpf/programs/contexts.h``), in that order.

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
    """One at each event, or what an argument of it says."""

    GVL_TIME = 4
    """The ns with the GVL, times the threads that wait for it meanwhile."""

    @property
    def has_switches(self) -> bool:
        return self in (Weighing.OFF_TIME, Weighing.ALL_TIME, Weighing.GVL_TIME)

    @property
    def has_ticks(self) -> bool:
        return self in (Weighing.RUN_TIME, Weighing.ALL_TIME, Weighing.GVL_TIME)

    @property
    def has_run_time(self) -> bool:
        """Return whether ticks stand for the time that their threads ran."""
        return self in (Weighing.RUN_TIME, Weighing.ALL_TIME)


class HeldGvl(NamedTuple):
    """A GVL that a thread has: the address of its queue, and how many are in it."""

    queue: int
    waiters: int


class OffCpu(NamedTuple):
    """Why a thread left its CPU, as the kernel knows it.

    is_ready: it could have run on, but another thread got the CPU
    is_queued: it is in the queue for the GVL
    is_uninterruptible: signals do not end the wait
    file_type: ``stat.S_IFMT`` of the descriptor it waits for; 0: none, or not known
    call: number of the system call; None: not known
    is_stopped: by a signal or a debugger
    """

    is_ready: bool
    is_queued: bool
    is_uninterruptible: bool
    file_type: int
    call: int | None
    is_stopped: bool = False


class WalkedStack(NamedTuple):
    """One stack of one thread, as the kernel walked it.

    key: the same for all equal stacks; empty: the frames could not be read
    time_ns: CLOCK_MONOTONIC of the walk, or of the end of a time off the CPU
    weight: ns, or the sum of events; 0: sent only to be named. A tick weighs one
        sampling period until the run time of its thread is known
    ticks: number of ticks; 0: a time off the CPU, or an event
    thread, fiber: addresses of rb_thread_t and rb_fiber_t
    frames: four words per frame, the newest first: iseq, pc (0: not up to date), method
        entry (or a cref or svar), flags; None: the frames were sent before, with the
        same key. Where pc is 1, the first word is the address of a JITFrame: 0 for a C
        function, 8 for an address that could not be read
    kernel_frames: addresses of the kernel's frames, the newest first, with ``frames``
    collecting: 0, or 1 + ``enum gc_mode`` of the collection in progress
    is_cut: older frames are missing
    collection: ``RubyVM.collection`` at the time of the walk, with ``frames``; 0:
        unknown
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
