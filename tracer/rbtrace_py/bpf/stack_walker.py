"""Ruby stacks that the kernel walks at clock ticks and when a thread leaves its CPU.

The programs are in ``programs/stacks.c``. A ``WalkLayout`` describes each process to
them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import (
    GVL,
    HEAD,
    INTERVAL,
    RUBY,
    SCRATCH,
    SCRATCHES,
    STACK_KEY,
)
from rbtrace_py.bpf.attach import (
    PerfTicks,
    RawTracepoint,
    attach_first,
    online_processors,
)
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.tracepoints import RecordField
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.stack_walk import (
    HeldGvl,
    OffCpu,
    WalkedStack,
    WalkLayout,
    Weighing,
)
from rbtrace_py.model.stacks import Sample

RING_SIZE = 1 << 23
"""Bytes. The ring has room for 500 stacks of 512 frames, or 3,000 of 80."""
_PROCESSES = 4096
_MAX_THREADS = 1 << 16
MOST_STACKS = 1 << 15
"""Maximum number of distinct stacks counted between two calls of ``counts``."""
_SETTLING_SECONDS = 0.0005
"""Time after which a walk has ended, if it cannot be preempted."""
_LONGEST_SETTLING_SECONDS = 1.0

_ANY_QUEUE = 0
_ID = struct.Struct("<Q")
_CUT = 0b11
_EPOCH_SHIFT = 2
_GC_SHIFT, _GC_MASK = 8, 0xFF
_OFF_CPU, _READY, _QUEUED, _UNINTERRUPTIBLE = 1 << 16, 1 << 17, 1 << 18, 1 << 19
_FILE_TYPE_SHIFT, _STOPPED, _CALL_SHIFT = 20, 1 << 24, 32
_FORMAT_SHIFT = 12
"""Shift of S_IFMT."""
_NAMING = 0xFFFF & ~(1 << _EPOCH_SHIFT)
"""Marks that distinguish stacks; other marks describe the thread's state."""
_WAYS: tuple[tuple[dict[str, int], dict[str, int]], ...] = (
    ({"MAY_GOTO": 1}, {"STATE_GIVEN": 1, "STACK_OFFSET": 0}),
    ({"MAY_GOTO": 0}, {"STATE_GIVEN": 1, "STACK_OFFSET": 0}),
    ({"MAY_GOTO": 0}, {"STATE_GIVEN": 0, "STACK_OFFSET": 0}),
    ({"MAY_GOTO": 0}, {"STATE_GIVEN": 0}),
)
"""Flags and numbers of the programs, for Linux since 6.9, 5.19, 5.15, and before."""
EVENT_WAYS: tuple[dict[str, int], ...] = ({"MAY_GOTO": 1}, {"MAY_GOTO": 0})
"""Flags of ``events.c``, for Linux since 6.9, and before."""


def event_maps(every: int) -> dict[str, MapSpec]:
    """Return the maps of ``events.c`` that the walker does not share."""
    threads = _MAX_THREADS if every > 1 else 1
    return {"turns": MapSpec(sys_.MAP_TYPE_LRU_HASH, 8, 8, threads)}


class StackWalker(Closing):
    """The attached programs; at first they walk no processes.

    Args:
        rate: Ticks per second of each processor.
        each: Weight from which samples are sent individually. Smaller samples are
            counted; if 0, all are.
        offsets: Offsets in kernel structures, from BTF, as listed in
            ``programs/stacks.c``.
        weighing: Weight of a stack.
        least_ns: Minimum time off the CPU to count.
        kernel_frames: Read kernel frames, too.

    Raises:
        NotPermitted: The tracer lacks the rights to use BPF.
        BpfError: The kernel lacks a feature.
    """

    def __init__(
        self,
        rate: float,
        each: int,
        offsets: Mapping[str, int],
        weighing: Weighing,
        least_ns: int,
        kernel_frames: bool,
    ) -> None:
        self._epoch = 0
        self._rate = rate
        self._weighing = weighing
        self._least_ns = least_ns
        self._each = each
        self._since: dict[int, int] = {}
        self._period = round(1e9 / rate)
        numbers = {"EACH": each, "WEIGHING": weighing, "LEAST": least_ns, **offsets}
        numbers["PERIOD"] = self._period
        numbers["KERNEL"] = kernel_frames
        self._numbers = numbers
        # Finding the GVL's holder exceeds the limits of older verifiers.
        ways = _WAYS[:1] if weighing is Weighing.GVL_TIME else _WAYS
        with ExitStack() as stack:
            self._program, self._walks = attach_first(
                stack,
                ways,
                lambda attempt, way: self._attach(attempt, way[0], numbers | way[1]),
            )
            self._ring = RingBuffer(self._program.maps["ring"])
            stack.callback(self._ring.close)
            self._stack = stack.pop_all()

    def _attach(
        self, stack: ExitStack, flags: Mapping[str, int], numbers: Mapping[str, int]
    ) -> tuple[Program, ExitStack]:
        """Attach all; the returned stack detaches only the walking programs."""
        self.can_walk_zjit = bool(flags["MAY_GOTO"])
        has_switches = self._weighing.has_switches
        flags = {**flags, "SWITCHES": has_switches}
        program = Program("stacks.c", _maps(self._weighing), flags, numbers)
        stack.callback(program.close)
        for function in ("fork", "exec", "exit"):
            tracepoint = RawTracepoint(
                program, f"on_{function}", f"sched_process_{function}"
            )
            stack.callback(tracepoint.close)
        walks = stack.enter_context(ExitStack())
        if has_switches:
            walks.callback(RawTracepoint(program, "on_switch", "sched_switch").close)
        if self._weighing.has_ticks:
            ticks = PerfTicks(program, "on_tick", self._period)
            walks.callback(ticks.close)
        return program, walks

    def walk(self, pid: int, layout: WalkLayout) -> None:
        """Walk a process from now on, or change its layout."""
        self._since.setdefault(pid, time.monotonic_ns())
        self._program.maps["rubies"].put(pid.to_bytes(4, "little"), RUBY.pack(*layout))

    def begin_off_cpu(
        self,
        waiting: Sample,
        off_cpu: OffCpu,
        number: int,
        ran_ns: int,
        held: HeldGvl | None = None,
    ) -> bytes:
        """Begin a time off the CPU of a thread that has not run since ``walk``.

        Args:
            waiting: The thread and its fiber, as read from memory.
            off_cpu: The reason why it is off the CPU.
            number: Distinguishes this time from others of the thread.
            ran_ns: Time in ns that the thread has been on CPUs since its creation.
            held: The GVL that it holds.

        Returns:
            The key of the time's stack.
        """
        thread = waiting.thread
        ids = thread.pid << 32 | (thread.tid or 0)
        hash_, since = number << 1 | 1, self._since[thread.pid]
        waiters = 0 if held is None else held.waiters
        address, fiber = thread.address, waiting.fiber
        value = INTERVAL.pack(
            *(hash_, ids, address, _off_cpu_marks(off_cpu), fiber),
            *(since, ran_ns, waiters, 0),
        )
        if held is not None:
            for queue in (held.queue, _ANY_QUEUE):
                gvl = GVL.pack(thread.pid, queue)
                self._program.maps["gvls"].put(gvl, _ID.pack(ids))
        self._program.maps["intervals"].put(_ID.pack(ids), value, only_new=True)
        return STACK_KEY.pack(hash_, ids, address, 0, fiber)

    def is_walked(self, pid: int) -> bool:
        """Return whether a process is walked; children are walked from their fork."""
        return self._program.maps["rubies"].has(pid.to_bytes(4, "little"))

    @property
    def period_ns(self) -> int:
        """Sampling period, the weight of a tick."""
        return self._period

    def leave(self, pid: int) -> None:
        """Stop walking a process."""
        self._since.pop(pid, None)
        self._program.maps["rubies"].delete(pid.to_bytes(4, "little"))

    def place(self, pid: int, tid: int, thread: int) -> None:
        """Set the rb_thread_t of a kernel thread, if the layout cannot find it."""
        self._program.maps["threads"].put(_ID.pack(pid << 32 | tid), _ID.pack(thread))

    def displace(self, pid: int, tid: int) -> None:
        """Forget a kernel thread that has ended."""
        self._program.maps["threads"].delete(_ID.pack(pid << 32 | tid))

    def stop(self) -> None:
        """Stop walking; the results so far can still be read."""
        self._walks.close()

    @property
    def maps(self) -> Mapping[str, Map]:
        """The maps to share with ``events.c``, which walks at events."""
        return self._program.maps

    @property
    def context_maps(self) -> dict[str, Map]:
        """The maps of a program that includes ``contexts.h``."""
        return {name: self._program.maps[name] for name in ("rubies", "threads")}

    @property
    def context_numbers(self) -> dict[str, int]:
        """The numbers of a program that includes ``contexts.h``."""
        return {"FSBASE_OFFSET": self._numbers["FSBASE_OFFSET"]}

    def event_numbers(
        self, every: int, is_weighted: bool, field: RecordField | None = None
    ) -> dict[str, int]:
        """Return the numbers of ``events.c``.

        Args:
            every: Sample one event in ``every`` of a thread.
            is_weighted: Use an argument of the event as its weight: a probe's first
                slot, or ``field`` of a tracepoint's record.
            field: Field of the record.
        """
        return {
            **self._numbers,
            "EVERY": every,
            "WEIGHTED": is_weighted,
            "FIELD_OFFSET": field.offset if field else 0,
            "FIELD_SIZE": field.size if field else 8,
            "FIELD_SIGNED": field.is_signed if field else False,
        }

    @property
    def counters(self) -> dict[Counter, int]:
        """Number of walks so far, by outcome."""
        return self._program.counters()

    def records(self) -> Iterator[WalkedStack]:
        """Yield the stacks that the programs sent since the last call."""
        return map(_of_record, self._ring.records())

    def counts(self) -> list[WalkedStack]:
        """Return the weight of each stack since the last call, without its frames.

        ``records`` yields the frames of each stack. They were sent since the last call
        or just before, or at the start of a time off the CPU that has ended. A stack
        may occur twice.
        """
        ended, self._epoch = self._epoch, self._epoch ^ 1
        self._program.maps["epoch"].put(bytes(4), _ID.pack(self._epoch))
        self._settle(ended)
        stacks = self._program.maps["stacks"]
        now = time.monotonic_ns()
        found = []
        for key, value in list(stacks.items()):
            words = STACK_KEY.unpack(key)
            if words[3] >> _EPOCH_SHIFT & 1 == ended:
                stacks.delete(key)
                if weight := int.from_bytes(value, "little"):
                    found.append(_walked(words, now, weight))
        return found

    def _settle(self, ended: int) -> None:
        """Wait until no program counts in an epoch; a preempted program still may."""
        end = time.monotonic() + _LONGEST_SETTLING_SECONDS
        while True:
            time.sleep(_SETTLING_SECONDS)
            view = self._program.maps["epoch"].view()
            (number,) = _ID.unpack_from(view, 8 * (1 + ended))
            if not number or time.monotonic() > end:
                return

    def open_intervals(self, stopped_ns: int = 0) -> list[WalkedStack]:
        """Return the times off the CPU that are not over.

        Args:
            stopped_ns: CLOCK_MONOTONIC when walking stopped; the times end then, and
                short ones are included. If 0, the times last until now.
        """
        now = stopped_ns or time.monotonic_ns()
        found = []
        for _, value in self._program.maps["intervals"].items():
            *words, since, _, waiters, waited = INTERVAL.unpack(value)
            least = self._least_ns if stopped_ns else max(self._least_ns, self._each)
            weight = now - since
            if self._weighing is Weighing.GVL_TIME:
                # ``since`` is the last change of its waiters, after its start.
                weight, least = waited + weight * waiters, 0
            if words[3] & _OFF_CPU and weight >= least:
                found.append(_walked(words, now, weight))
        return found

    def close(self) -> None:
        self._stack.close()


def _maps(weighing: Weighing) -> dict[str, MapSpec]:
    has_intervals = weighing.has_switches
    scratches = SCRATCHES if weighing is Weighing.EVENTS else 1
    return {
        "rubies": MapSpec(sys_.MAP_TYPE_HASH, 4, RUBY.size, _PROCESSES),
        "threads": MapSpec(sys_.MAP_TYPE_HASH, 8, 8, _MAX_THREADS),
        "intervals": MapSpec(
            sys_.MAP_TYPE_HASH, 8, INTERVAL.size, _MAX_THREADS if has_intervals else 1
        ),
        "scratches": MapSpec(
            sys_.MAP_TYPE_ARRAY,
            4,
            SCRATCH.size,
            scratches * (1 + max(online_processors())),
        ),
        "gvls": MapSpec(
            sys_.MAP_TYPE_LRU_HASH,
            GVL.size,
            8,
            _PROCESSES if weighing is Weighing.GVL_TIME else 1,
        ),
        "stacks": MapSpec(sys_.MAP_TYPE_HASH, STACK_KEY.size, 8, MOST_STACKS),
        "epoch": MapSpec(sys_.MAP_TYPE_ARRAY, 4, 8, 3, sys_.F_MMAPABLE),
        "counters": counters_map(),
        "ring": MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, RING_SIZE),
    }


def _walked(
    words: Sequence[int],
    at: int,
    weight: int,
    frames: memoryview | None = None,
    kernel_frames: memoryview | None = None,
) -> WalkedStack:
    hash_, ids, thread, marks, fiber = words
    return WalkedStack(
        key=STACK_KEY.pack(hash_, ids, thread, marks & _NAMING, fiber),
        time_ns=at,
        pid=ids >> 32,
        tid=ids & 0xFFFFFFFF,
        thread=thread,
        fiber=fiber,
        frames=frames,
        collecting=marks >> _GC_SHIFT & _GC_MASK,
        is_cut=bool(marks & _CUT),
        weight=weight,
        off_cpu=_off_cpu(marks) if marks & _OFF_CPU else None,
        kernel_frames=kernel_frames,
    )


def _of_record(record: bytes) -> WalkedStack:
    *words, at, weight, count, kernel_count, collection = HEAD.unpack_from(record)
    if not count:
        return _walked(words, at, weight)
    frames = memoryview(record)[HEAD.size :].cast("Q")
    end = len(frames) - kernel_count
    found = _walked(words, at, weight, frames[:end], frames[end:])
    return found._replace(collection=collection)


def _off_cpu(marks: int) -> OffCpu:
    call = marks >> _CALL_SHIFT
    return OffCpu(
        is_ready=bool(marks & _READY),
        is_queued=bool(marks & _QUEUED),
        is_uninterruptible=bool(marks & _UNINTERRUPTIBLE),
        file_type=(marks >> _FILE_TYPE_SHIFT & 0xF) << _FORMAT_SHIFT,
        call=call - 1 if call else None,
        is_stopped=bool(marks & _STOPPED),
    )


def _off_cpu_marks(off_cpu: OffCpu) -> int:
    call = 0 if off_cpu.call is None else off_cpu.call + 1
    return (
        _OFF_CPU
        | _READY * off_cpu.is_ready
        | _QUEUED * off_cpu.is_queued
        | _UNINTERRUPTIBLE * off_cpu.is_uninterruptible
        | _STOPPED * off_cpu.is_stopped
        | off_cpu.file_type >> _FORMAT_SHIFT << _FILE_TYPE_SHIFT
        | call << _CALL_SHIFT
    )
