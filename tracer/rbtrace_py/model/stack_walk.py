"""The walk of Ruby stacks in the kernel: what it needs to know, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MOST_KERNEL_FRAMES = 127
"""Kernel frames of a stack at most: the default of kernel.perf_event_max_stack."""


@dataclass(frozen=True, slots=True)
class WalkLayout:
    """A process's Ruby, as the kernel's walk needs it; offsets in bytes.

    tls: of the word, from a thread's fs base, with the execution context (below 0) or
        with the thread (above 0); 0: unknown
    collecting: address and mask of the word that tells of a collection; (0, 0): unknown
    collections: address of the number of collections so far; 0: unknown
    local_flag: VM_ENV_FLAG_LOCAL
    running: address of the word with the thread that has the GVL, up to 2.7; else 0
    ec_…, cfp_…, th_…, ractor_…: as ``rubyvm.layout.Offsets`` has them; cfp_jit_return
        is None if the structure lacks this member
    has_zjit: ZJIT is on, and no pc of an innermost frame is up to date (4.0)
    zjit: address of the word that is not 0 while ZJIT keeps pc and iseq of its frames
        in JITFrames (4.1); 0: it never does
    ractor_objspace: of the pointer to a ractor's own object space; 0: it has none
    objspace_flags: of the word that tells of a collection, in an object space
    gvl_queue, gvl_node: of the queue for the GVL in a ractor, and of a place in it in a
        thread; 0: not known
    queue: address of the queue, up to 2.7; else 0
    gvl_holder: of the thread that has the GVL, in a ractor; up to 2.7 its address; 0:
        not known
    imemo_mask, method_entry: an object whose flags & mask are this is a method entry
    follows: children that are forked are walked, too
    """

    tls: int
    collecting: tuple[int, int]
    collections: int
    local_flag: int
    running: int
    ec_vm_stack: int
    ec_vm_stack_size: int
    ec_cfp: int
    ec_thread: int
    ec_fiber: int
    cfp_size: int
    cfp_pc: int
    cfp_sp: int
    cfp_iseq: int
    cfp_ep: int
    cfp_jit_return: int | None
    th_ec: int
    th_ractor: int
    ractor_running_ec: int
    has_zjit: bool
    zjit: int
    ractor_objspace: int
    objspace_flags: int
    imemo_mask: int
    method_entry: int
    follows: bool
    gvl_queue: int
    gvl_node: int
    queue: int
    gvl_holder: int


class Weighing(IntEnum):
    """What a stack weighs: ``enum weighing`` of ``bpf/programs/stacks.c``."""

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
