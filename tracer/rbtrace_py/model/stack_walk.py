"""The walk of Ruby stacks in the kernel: what it needs to know, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class WalkLayout:
    """A process's Ruby, as the kernel's walk needs it; offsets in bytes.

    tls: of the word with the execution context, from a thread's fs base; 0: unknown
    collecting: address and mask of the word that tells of a collection; (0, 0): unknown
    local_flag: VM_ENV_FLAG_LOCAL
    running: address of the word with the thread that has the GVL, up to 2.7; else 0
    ec_…, cfp_…, th_…, ractor_…: as ``rubyvm.layout.Offsets`` has them; cfp_jit_return:
        None where there is no such member
    has_zjit: ZJIT is on
    imemo_mask, method_entry: an object whose flags & mask are this is a method entry
    follows: children that are forked are walked, too
    """

    tls: int
    collecting: tuple[int, int]
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
    imemo_mask: int
    method_entry: int
    follows: bool


class WalkedStack(NamedTuple):
    """One stack of one thread, as the kernel walked it.

    key: of all that are equal to it
    time_ns: CLOCK_MONOTONIC when it was seen
    thread, fiber: addresses of rb_thread_t and rb_fiber_t
    frames: four words a frame, the newest first: iseq, pc (0: not up to date), method
        entry (or a cref or svar), flags; None: those of the stack with this
        key that went up before
    collecting: 0, or 1 and more: a collection was going on
    is_cut: older frames are missing
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
