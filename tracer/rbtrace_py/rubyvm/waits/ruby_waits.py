"""The wait of a thread or a fiber, from its innermost frames and VM structures.

The receiver of a waiting method is in its control frame: the queue, the thread to join,
the IO. The thread itself also refers to a Mutex, even if code without a frame locks it
(``require``, ``autoload``, a Monitor, an IO's own lock).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.model.waits import WaitKind
from rbtrace_py.rubyvm.fibers import Fiber, FiberStatus
from rbtrace_py.rubyvm.iseqs import Iseqs
from rbtrace_py.rubyvm.locals import LocalsReader
from rbtrace_py.rubyvm.names import Names
from rbtrace_py.rubyvm.values import T_DATA, Values
from rbtrace_py.rubyvm.vm import ControlFrame
from rbtrace_py.rubyvm.waits.calls import (
    MONITORS,
    PUSHES,
    REQUIRES,
    WAITING,
    frame_of,
    hook_place,
    is_of_ractor,
    native_name,
    plain,
)

_AUTOLOAD = "Module#autoload"
_ID_SCOPE, _ID_CONST = 0xE, 0xA
"""The bits of an ID that identify a constant (id.h)."""
_MONITOR_MUTEX = 16
"""Offset of mutex in ``struct rb_monitor`` (ext/monitor/monitor.c)."""

_LIMITS = {
    "Thread#join": 0,
    "ConditionVariable#wait": 1,
    "Monitor#wait_for_cond": 1,
    "IO.select": 3,
    "Kernel#select": 3,
    "IO#wait_readable": 0,
    "IO#wait_writable": 0,
}
"""Index of the timeout argument, of functions in C."""
_LIMIT = "timeout"
"""Name of the timeout parameter, of Ruby's own methods in Ruby (thread_sync.rb)."""

_MOST_ARGUMENTS = 16


class RubyWait(NamedTuple):
    """The wait of one thread or fiber, according to the VM.

    Attributes:
        kind: Kind of the wait.
        call: The method that waits.
        object, class_name: Usually its receiver.
        owner: Address of the thread that holds the lock, or that must end; 0: unknown.
        owner_fiber: Address of the fiber that holds the lock; 0: unknown.
        owner_serial: Number of the fiber that holds the lock, if the owner does not run
            it.
        is_free: True if the lock was not held.
        has_ended: True if the fiber that holds the lock has ended.
        fd: Descriptor of the receiver.
        pid: Pid of the child process.
        ractor: Address of the ractor.
        path: Path of the required file, or name of the constant; safe to print.
        autoload: ID of the constant that another thread loads.
    """

    kind: WaitKind
    call: str
    object: int = 0
    class_name: str = ""
    owner: int = 0
    owner_fiber: int = 0
    owner_serial: int = 0
    is_free: bool = False
    has_ended: bool = False
    length: int | None = None
    limit: int | None = None
    waiting: int | None = None
    seconds: float | None = None
    is_forever: bool = False
    fd: int | None = None
    pid: int | None = None
    ractor: int = 0
    path: str = ""
    autoload: int = 0


class RubyWaits:
    """Reads waits. Raises only NoSuchTarget, once the process is gone."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._offsets = values.offsets
        self._names = Names(values, Iseqs(values))
        self._locals = LocalsReader(values)

    def of_thread(self, thread: int, frames: Sequence[ControlFrame]) -> RubyWait | None:
        """Return the wait of a thread that does not run, or None if unknown.

        Args:
            thread: Address of its ``rb_thread_t``.
            frames: Frames of the fiber that it runs, newest first.
        """
        shown = [frame for frame in frames if frame.node.frame is not None]
        try:
            mutex = self._locking(thread)
            if mutex:
                return self._of_locking(mutex, frames, shown)
            if not shown:
                return self._without_frames(thread)
            constant = self._constant(shown[0])
            if constant:
                name = self._values.id_name(constant) or ""
                return RubyWait(WaitKind.MUTEX, _AUTOLOAD, path=name, autoload=constant)
            place = hook_place(shown) if self.has_scheduler(thread) else None
            return self._of_call(frames, shown[place or 0 :])
        except UnreadableMemory:
            return None

    def _constant(self, frame: ControlFrame) -> int:
        """Return the ID of the constant that Ruby code is about to read, or 0.

        Up to 3.1 it is the operand of ``getconstant``, just before the pc. Code that
        sleeps there waits, without a Mutex, for the thread that loads the constant.
        """
        iseq, pc = frame.node.iseq, frame.node.pc
        if not self._values.traits.autoloads_without_mutex:
            return 0
        if iseq is None or iseq.is_internal or pc - 8 < iseq.begin:
            return 0
        word = self._values.u64(pc - 8)
        is_constant = word & _ID_SCOPE == _ID_CONST and word < 1 << 32
        name = self._values.id_name(word) if is_constant else None
        return word if name and name[0].isupper() else 0

    def loads(self, frames: Sequence[ControlFrame], constant: int) -> bool | None:
        """Return whether a thread with these frames loads a constant, or None."""
        shown = [frame for frame in frames if frame.node.frame is not None]
        for callee, caller in pairwise(shown):
            if frame_of(callee).name != REQUIRES[0]:
                continue
            if native_name(caller).endswith("#const_get"):
                return None
            try:
                if self._constant(caller) == constant:
                    return True
            except UnreadableMemory:
                return None
        return False

    def _without_frames(self, thread: int) -> RubyWait | None:
        """The thread of ``Process.detach`` runs no Ruby code."""
        offset = self._offsets.th_self
        if offset is None:
            return None
        value = self._values.u64(thread + offset)
        is_waiter = self._names.class_of(value) == "Process::Waiter"
        return RubyWait(WaitKind.CHILD, "Process.detach") if is_waiter else None

    def of_fiber(self, frames: Sequence[ControlFrame]) -> RubyWait | None:
        """Return the wait of a suspended fiber in its scheduler, or None."""
        shown = [frame for frame in frames if frame.node.frame is not None]
        place = hook_place(shown)
        try:
            return None if place is None else self._of_call(frames, shown[place:])
        except UnreadableMemory:
            return None

    def has_scheduler(self, thread: int) -> bool:
        """Return whether the thread has a fiber scheduler; False if unknown."""
        offset = self._offsets.th_scheduler
        if offset is None:
            return False
        try:
            return self._values.is_object(self._values.u64(thread + offset))
        except UnreadableMemory:
            return False

    # ----------------------------------------------------------------- mutexes

    def _locking(self, thread: int) -> int:
        """Return the awaited Mutex, according to the thread's structure, or 0."""
        offset = self._offsets.th_locking_mutex
        if offset is None:
            return 0
        value = self._values.u64(thread + offset)
        return value if self._values.type_of(value) == T_DATA else 0

    def _of_locking(
        self,
        mutex: int,
        frames: Sequence[ControlFrame],
        shown: Sequence[ControlFrame],
    ) -> RubyWait:
        """Return the wait, with a Monitor in place of its Mutex, or a required file."""
        call = native_name(shown[0]) if shown else ""
        if plain(call) in MONITORS:
            return self._of_mutex(mutex, shown[0].receiver, call)
        found = self._of_mutex(mutex, mutex, call)
        if call not in REQUIRES:
            return found
        arguments = self._arguments(frames, shown[0])
        path = self._values.string(arguments[0]) if arguments else None
        return found._replace(path=path or "")

    def _of_mutex(self, mutex: int, shown: int, call: str) -> RubyWait:
        found = self._about(WaitKind.MUTEX, call, shown)
        structure, offset = self._values.structure(mutex), self._offsets.mutex_owner
        if not structure or offset is None:
            return found
        owner = self._values.u64(structure + offset)
        if not owner:
            return found._replace(is_free=True)
        if not self._values.traits.owner_is_thread:
            return self._held_by_fiber(found, owner)
        serial = self._other_serial(structure, owner)
        return found._replace(owner=owner, owner_serial=serial)

    def _other_serial(self, mutex: int, thread: int) -> int:
        """Return the number of the fiber that holds a Mutex; 0: the running fiber."""
        offsets = self._offsets
        if None in (offsets.mutex_serial, offsets.ec_serial, offsets.th_ec):
            return 0
        ec = self._values.u64(thread + (offsets.th_ec or 0))
        serial = self._values.u64(mutex + (offsets.mutex_serial or 0))
        return 0 if serial == self._serial(ec) else serial

    def _serial(self, ec: int) -> int:
        return self._values.u64(ec + (self._offsets.ec_serial or 0))

    def fiber_of(self, serial: int, fibers: Sequence[Fiber]) -> int:
        """Return the address of the fiber with this number, or 0 if it is missing."""
        for fiber in fibers:
            try:
                if self._serial(fiber.ec) == serial:
                    return fiber.address
            except UnreadableMemory:
                continue
        return 0

    def _held_by_fiber(self, found: RubyWait, fiber: int) -> RubyWait:
        offsets = self._offsets
        if offsets.fiber_ec is None or offsets.ec_thread is None:
            return found
        thread = self._values.u64(fiber + offsets.fiber_ec + offsets.ec_thread)
        has_ended = offsets.fiber_status is not None and (
            self._values.u32(fiber + offsets.fiber_status) & 3 == FiberStatus.TERMINATED
        )
        return found._replace(owner=thread, owner_fiber=fiber, has_ended=has_ended)

    # ------------------------------------------------------------------- calls

    def _of_call(
        self, frames: Sequence[ControlFrame], shown: Sequence[ControlFrame]
    ) -> RubyWait:
        """Return the wait of the first frame of ``shown``, as far as known."""
        names = [plain(native_name(frame)) for frame in shown[:2]]
        if names == ["Mutex#sleep", "ConditionVariable#wait"]:
            shown = shown[1:]  # its caller, before 4.0
        while len(shown) > 1 and is_of_ractor(shown[0]) and is_of_ractor(shown[1]):
            shown = shown[1:]  # Ractor#value calls Ractor::Port#receive, in 4.0
        found = self._of_frame(frames, shown[0])
        if found.kind in (WaitKind.SLEEP, WaitKind.MUTEX):
            return found
        return found._replace(seconds=self._limit(frames, shown))

    def _of_frame(
        self, frames: Sequence[ControlFrame], frame: ControlFrame
    ) -> RubyWait:
        call, receiver = native_name(frame), frame.receiver
        kind = WAITING.get(plain(call))
        if kind is WaitKind.MUTEX:
            return self._of_mutex(receiver, receiver, call)
        if plain(call) in MONITORS:
            structure = self._values.structure(receiver)
            mutex = self._values.u64(structure + _MONITOR_MUTEX) if structure else 0
            return self._of_mutex(mutex, receiver, call)
        if kind is WaitKind.QUEUE:
            return self._of_queue(receiver, call)
        if kind is WaitKind.CONDITION:
            return self._about(kind, call, receiver)
        if kind is WaitKind.THREAD:
            found = self._about(kind, call, receiver)
            return found._replace(owner=self._values.structure(receiver))
        if kind is WaitKind.SLEEP:
            return self._of_sleep(call, self._arguments(frames, frame))
        if kind is WaitKind.CHILD:
            return self._of_child(call, self._arguments(frames, frame))
        if kind is not None:
            is_object = call.startswith("Ractor#")
            ractor = self._values.structure(receiver) if is_object else 0
            return RubyWait(kind, call, ractor=ractor)
        pid = self._values.child(receiver) if call == "IO#close" else None
        if pid is not None:
            return RubyWait(WaitKind.CHILD, call, pid=pid)
        fd = self._values.descriptor(receiver) if call else None
        if fd is not None:
            return self._about(WaitKind.IO, call, receiver)._replace(fd=fd)
        return RubyWait(WaitKind.UNKNOWN, call)

    def _about(self, kind: WaitKind, call: str, value: int) -> RubyWait:
        return RubyWait(kind, call, value, self._names.class_of(value))

    def _of_queue(self, queue: int, call: str) -> RubyWait:
        found = self._about(WaitKind.QUEUE, call, queue)
        values, offsets = self._values, self._offsets
        structure = values.structure(queue)
        if not structure:
            return found
        if offsets.queue_length is not None:
            found = found._replace(length=values.u64(structure + offsets.queue_length))
        elif offsets.queue_items is not None:
            items = values.array(values.u64(structure + offsets.queue_items))
            found = found._replace(length=None if items is None else items[1])
        is_push = call.rpartition("#")[2] in PUSHES
        count = offsets.queue_pushing if is_push else offsets.queue_waiting
        if count is not None:
            found = found._replace(waiting=values.u32(structure + count))
        if is_push and offsets.queue_most is not None:
            found = found._replace(limit=values.u64(structure + offsets.queue_most))
        return found

    def _of_sleep(self, call: str, arguments: list[int] | None) -> RubyWait:
        found = RubyWait(WaitKind.SLEEP, call)
        if arguments is None:
            return found
        if not arguments or arguments[0] == self._values.traits.qnil:
            return found._replace(is_forever=True)
        return found._replace(seconds=self._values.real(arguments[0]))

    def _limit(
        self, frames: Sequence[ControlFrame], shown: Sequence[ControlFrame]
    ) -> float | None:
        """Return the maximum seconds that a call waits; None: unlimited or unknown."""
        if [native_name(frame) for frame in shown[1:2]] == ["Monitor#wait_for_cond"]:
            shown = shown[1:]  # its caller, the method of the condition variable
        frame, call = shown[0], native_name(shown[0])
        argument = _LIMITS.get(plain(call))
        value = None
        if call and frame.node.iseq is not None:
            value = self._locals.value(frame, _LIMIT)
        elif argument is not None:
            arguments = self._arguments(frames, frame) or []
            value = arguments[argument] if argument < len(arguments) else None
        return None if value is None else self._values.real(value)

    def _of_child(self, call: str, arguments: list[int] | None) -> RubyWait:
        found = RubyWait(WaitKind.CHILD, call)
        if arguments is None or not call.startswith("Process"):
            return found
        pid = self._values.number(arguments[0]) if arguments else -1
        if not isinstance(pid, int):
            return found
        return found._replace(pid=0 if pid == -1 else pid)

    def _arguments(
        self, frames: Sequence[ControlFrame], frame: ControlFrame
    ) -> list[int] | None:
        """Return the arguments of a C function; None if they are not on the stack.

        They are between the receiver, to which the caller's stack pointer points, and
        the function's own environment (vm_call_cfunc of vm_insnhelper.c).
        """
        place = frames.index(frame)
        if frame.node.iseq is not None or place + 1 >= len(frames):
            return None
        start = frames[place + 1].sp
        count = (frame.ep - 16 - start) // 8
        if not 1 <= count <= _MOST_ARGUMENTS:
            return None
        data = self._values.memory.read(start, 8 * count)
        receiver, *arguments = struct.unpack(f"={count}Q", data)
        return arguments if receiver == frame.receiver else None
