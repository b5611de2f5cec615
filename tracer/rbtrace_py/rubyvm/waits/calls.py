"""Methods that wait: their names, the kinds of their waits, and their frames.

The receiver of a waiting method is in its control frame: the queue, the thread to join,
the IO. A fiber of a scheduler waits in a hook of the scheduler, which the waiting
method called.
"""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.stacks import Frame, FrameKind
from rbtrace_py.model.waits import WaitKind
from rbtrace_py.rubyvm.vm import ControlFrame

_POPS = ("pop", "shift", "deq")
PUSHES = ("push", "<<", "enq")
WAITING: dict[str, WaitKind] = {
    **{f"Queue#{name}": WaitKind.QUEUE for name in _POPS},
    **{f"SizedQueue#{name}": WaitKind.QUEUE for name in (*_POPS, *PUSHES)},
    **{f"Mutex#{name}": WaitKind.MUTEX for name in ("lock", "synchronize")},
    "ConditionVariable#wait": WaitKind.CONDITION,
    "Thread#join": WaitKind.THREAD,
    "Thread#value": WaitKind.THREAD,
    "Kernel#sleep": WaitKind.SLEEP,
    "Thread.stop": WaitKind.SLEEP,
    "Mutex#sleep": WaitKind.SLEEP,
    "Process.wait": WaitKind.CHILD,
    "Process.wait2": WaitKind.CHILD,
    "Process.waitpid": WaitKind.CHILD,
    "Process.waitpid2": WaitKind.CHILD,
    "Process.waitall": WaitKind.CHILD,
    "Process::Status.wait": WaitKind.CHILD,
    "Kernel#system": WaitKind.CHILD,
    "Kernel#`": WaitKind.CHILD,
    "IO.popen": WaitKind.CHILD,
    "Ractor.receive": WaitKind.RACTOR,
    "Ractor.recv": WaitKind.RACTOR,
    "Ractor.receive_if": WaitKind.RACTOR,
    "Ractor.select": WaitKind.RACTOR,
    "Ractor.yield": WaitKind.RACTOR,
    "Ractor#take": WaitKind.RACTOR,
    "Ractor#value": WaitKind.RACTOR,
    "Ractor#join": WaitKind.RACTOR,
    "Ractor::Port#receive": WaitKind.RACTOR,
    "Ractor::Port#<<": WaitKind.RACTOR,
}
"""Methods of Ruby itself that wait, without the ``Thread::`` of newer versions."""

RESOLVERS = frozenset(
    (
        "TCPSocket#initialize", "TCPServer#initialize", "TCPSocket.gethostbyname",
        "UDPSocket#bind", "UDPSocket#connect", "UDPSocket#send", "IPSocket.getaddress",
        "Addrinfo.getaddrinfo", "Addrinfo#getnameinfo", "Socket.getaddrinfo",
        "Socket.getnameinfo", "Socket.gethostbyname",
    )
)  # fmt: skip
"""Methods that resolve host names; since 3.3 native threads do that for them
(ext/socket/raddrinfo.c)."""

MONITORS = ("Monitor#enter", "Monitor#synchronize", "Monitor#mon_enter",
             "Monitor#mon_synchronize")  # fmt: skip
REQUIRES = ("Kernel#require", "Kernel#require_relative")

_HOOKS = ("block", "kernel_sleep", "io_wait", "io_read", "io_write", "io_pread",
          "io_pwrite", "io_select", "io_close", "process_wait", "address_resolve",
          "timeout_after", "blocking_operation_wait")  # fmt: skip
"""Methods of a fiber scheduler that Ruby calls instead of waiting itself
(Fiber::Scheduler)."""
_MOST_HOOK_FRAMES = 64
"""Maximum frames of a scheduler on top of the method that waits."""


def kind_of_call(name: str) -> WaitKind | None:
    """Return the kind of a Ruby method's wait, or None if unknown."""
    kind = WaitKind.MUTEX if plain(name) in MONITORS else None
    return WAITING.get(plain(name), kind)


def hook_place(shown: Sequence[ControlFrame]) -> int | None:
    """Return the index of the method that called a scheduler's hook, or None.

    A waiting method calls no other code of the program, except methods with a block.
    """
    for place, frame in enumerate(shown[1 : _MOST_HOOK_FRAMES + 1]):
        hook, caller = shown[place], plain(native_name(frame))
        if not caller or native_name(hook):
            continue
        is_hook = _method(hook) in _HOOKS
        if is_hook or (caller in WAITING and not caller.endswith("#synchronize")):
            return place + 1
    return None


def is_of_ractor(frame: ControlFrame) -> bool:
    """Return whether the method waits for a ractor."""
    return WAITING.get(native_name(frame)) is WaitKind.RACTOR


def frame_of(frame: ControlFrame) -> Frame:
    """Return the visible frame of a control frame that has one."""
    assert frame.node.frame is not None
    return frame.node.frame


def _method(frame: ControlFrame) -> str:
    return frame_of(frame).name.rpartition("#")[2]


def native_name(frame: ControlFrame) -> str:
    """Return the name of a method of Ruby or an extension; "" for a program's own."""
    one, iseq = frame_of(frame), frame.node.iseq
    is_native = one.kind is FrameKind.C or (iseq is not None and iseq.is_internal)
    return one.name if is_native else ""


def plain(call: str) -> str:
    """Return a method's name without the ``Thread::`` of newer versions."""
    return call.removeprefix("Thread::")
