"""Ruby stacks walked by the kernel at each tick of a processor's clock.

One program on a perf event of each processor (``programs/stacks.c``). What it needs
to know of a process comes as a ``WalkLayout``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import MOST_FRAMES, Counter
from rbtrace_py.bpf.attach import PerfTicks, RawTracepoint, online_processors
from rbtrace_py.bpf.maps import MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.stack_walk import WalkedStack, WalkLayout

RING_SIZE = 1 << 23
"""Bytes: room for 500 stacks of 512 frames, or 3,000 of 80."""
_PROCESSES = 4096
_MAX_THREADS = 1 << 16
_MAX_STACKS = 1 << 15
"""Different stacks that are counted between two calls of ``take``."""
_SETTLING_SECONDS = 0.0005
"""A walk that has begun is over after that."""

_RUBY = struct.Struct("<q4Q 18I")
_KEY = struct.Struct("<QQQQQ")
_HEAD = struct.Struct("<QQQQQ QQ")
_ID = struct.Struct("<Q")
_FRAME_BYTES = 32
_SCRATCH = 4 * 8 + 5 * 8 + 16 * 8 + _HEAD.size + MOST_FRAMES * 64 + 8192 * 8
_CUT = 0b11
_MARKS_AT = 24
"""Of the marks in a key."""
_EPOCH_SHIFT = 2
_GC_SHIFT, _GC_MASK = 8, 0xFF


class StackWalker(Closing):
    """Walks no process yet, but is ready to.

    rate: ticks a second of each processor
    each: tell of every sample, not of counts
    offsets: ``FSBASE_OFFSET``, ``PID_OFFSET`` and ``TGID_OFFSET``, from BTF

    Raises NotPermitted or BpfError where it cannot be.
    """

    def __init__(self, rate: float, each: bool, offsets: dict[str, int]) -> None:
        self._epoch = 0
        with ExitStack() as stack:
            self._program = program = Program(
                "stacks.c",
                {
                    "rubies": MapSpec(sys_.MAP_TYPE_HASH, 4, _RUBY.size, _PROCESSES),
                    "threads": MapSpec(sys_.MAP_TYPE_HASH, 8, 8, _MAX_THREADS),
                    "scratches": MapSpec(
                        sys_.MAP_TYPE_ARRAY, 4, _SCRATCH, 1 + max(online_processors())
                    ),
                    "stacks": MapSpec(sys_.MAP_TYPE_HASH, _KEY.size, 8, _MAX_STACKS),
                    "epoch": MapSpec(sys_.MAP_TYPE_ARRAY, 4, 8, 1),
                    "counters": counters_map(),
                    "ring": MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, RING_SIZE),
                },
                {},
                {**offsets, "EACH": each},
            )
            stack.callback(program.close)
            self._ring = RingBuffer(program.maps["ring"])
            stack.callback(self._ring.close)
            for function in ("fork", "exec", "exit"):
                tracepoint = RawTracepoint(
                    program, f"on_{function}", f"sched_process_{function}"
                )
                stack.callback(tracepoint.close)
            self._ticks = PerfTicks(program, "on_tick", round(1e9 / rate))
            stack.callback(self._ticks.close)
            self._stack = stack.pop_all()

    def walk(self, pid: int, layout: WalkLayout) -> None:
        """Walk this process from here on, or with another layout."""
        self._program.maps["rubies"].put(pid.to_bytes(4, "little"), _packed(layout))

    def leave(self, pid: int) -> None:
        """Walk this process no more."""
        self._program.maps["rubies"].delete(pid.to_bytes(4, "little"))

    def place(self, pid: int, tid: int, thread: int) -> None:
        """Say which thread a kernel thread runs, where no layout says."""
        self._program.maps["threads"].put(_ID.pack(pid << 32 | tid), _ID.pack(thread))

    def displace(self, pid: int, tid: int) -> None:
        """The kernel thread has ended."""
        self._program.maps["threads"].delete(_ID.pack(pid << 32 | tid))

    def stop(self) -> None:
        """Walk nothing any more; what was seen can still be taken."""
        self._ticks.close()

    @property
    def counters(self) -> dict[Counter, int]:
        """Counters of walks so far, by outcome."""
        return self._program.counters()

    def wait(self, seconds: float) -> None:
        """Wait until there are records, at most so long."""
        self._ring.wait(seconds)

    def records(self) -> Iterator[WalkedStack]:
        """Yield the stacks that went up since the last call."""
        return map(_walked, self._ring.records())

    def counts(self) -> dict[bytes, int]:
        """Take how often each stack was seen since the last call, by its key.

        Each of them went up in that time, or just before.
        """
        ended, self._epoch = self._epoch, self._epoch ^ 1
        self._program.maps["epoch"].put(bytes(4), _ID.pack(self._epoch))
        time.sleep(_SETTLING_SECONDS)
        stacks = self._program.maps["stacks"]
        found = {}
        for key, value in list(stacks.items()):
            if key[_MARKS_AT] >> _EPOCH_SHIFT & 1 == ended:
                found[key] = int.from_bytes(value, "little")
                stacks.delete(key)
        return found

    def close(self) -> None:
        self._stack.close()


def _walked(record: bytes) -> WalkedStack:
    _, ids, thread, marks, fiber, at, count = _HEAD.unpack_from(record)
    return WalkedStack(
        key=record[: _KEY.size],
        time_ns=at,
        pid=ids >> 32,
        tid=ids & 0xFFFFFFFF,
        thread=thread,
        fiber=fiber,
        frames=memoryview(record)[_HEAD.size :].cast("Q") if count else None,
        collecting=marks >> _GC_SHIFT & _GC_MASK,
        is_cut=bool(marks & _CUT),
    )


def _packed(layout: WalkLayout) -> bytes:
    """``struct ruby``."""
    size = layout.cfp_size
    jit = size if layout.cfp_jit_return is None else layout.cfp_jit_return
    offsets: Sequence[int] = (
        *(layout.ec_vm_stack, layout.ec_vm_stack_size, layout.ec_cfp),
        *(layout.ec_thread, layout.ec_fiber, size, layout.cfp_pc, layout.cfp_sp),
        *(layout.cfp_iseq, layout.cfp_ep, jit),
    )
    return _RUBY.pack(
        layout.tls,
        *layout.collecting,
        layout.local_flag,
        layout.running,
        *(offset // 8 for offset in offsets),
        layout.has_zjit,
        layout.th_ec,
        layout.imemo_mask,
        layout.method_entry,
        layout.follows,
        layout.th_ractor,
        layout.ractor_running_ec,
    )
