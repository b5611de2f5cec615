"""Waits of threads and fibers, and the holders that block them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rbtrace_py.model.stacks import RubyThread

ON_CPU = "on CPU"
"""The part of an interval in which a thread was on a CPU."""


class WaitKind(str, Enum):
    """Kinds of waits; the values appear in JSON."""

    MUTEX = "mutex"
    QUEUE = "queue"
    CONDITION = "condition variable"
    THREAD = "thread"
    GVL = "gvl"
    IO = "io"
    OPEN = "open"
    FILE_LOCK = "file lock"
    CHILD = "child process"
    SLEEP = "sleep"
    RACTOR = "ractor"
    EXIT = "exit"
    NATIVE_LOCK = "native lock"
    SYSTEM_CALL = "system call"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """A process that may block the target; ``command`` is safe to print."""

    pid: int
    command: str = ""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor that a thread waits for; its strings are safe to print.

    Attributes:
        number: Number of the descriptor.
        action: Operation that waits: ``read``, ``write``, ``accept`` …
        target: ``pipe:[123]``, ``tcp 127.0.0.1:4 -> 127.0.0.1:80``, or a path; empty
            if unknown.
        other_ends: Descriptors of the same process for the other end of a pipe.
        other_processes: Processes with the other end, if the process itself lacks it.
        watched: Descriptors that an epoll descriptor watches.
    """

    number: int
    action: str
    target: str = ""
    other_ends: tuple[int, ...] = ()
    other_processes: tuple[OtherProcess, ...] = ()
    watched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiter:
    """A thread or fiber that blocks others.

    Attributes:
        thread: The thread.
        fiber: Address of the fiber; 0 if unknown.
        is_suspended: True if the thread is not running the fiber. A fiber of unknown
            address may have ended.
        has_ended: True if the fiber has ended and will never release its lock.
    """

    thread: RubyThread
    fiber: int = 0
    is_suspended: bool = False
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of one thread or fiber; its strings are safe to print.

    Attributes:
        kind: Kind of wait.
        call: The waiting method (``Thread::Queue#pop``); empty if there is no method.
        system_call: Name of the current system call; empty if unknown or redundant.
        object: Address of the awaited object, or 0.
        class_name: Class of the awaited object, or empty.
        holder: The thread or fiber that must act first, by releasing the lock or
            ending; None if unknown.
        is_free: True if the lock was free when it was read.
        length: Number of items in a queue; None if unknown.
        limit: Capacity of a queue; None if unknown.
        waiting: Number of threads that wait at the queue, including this one.
        seconds: Duration of a sleep, or timeout of another wait; None if infinite or
            unknown.
        is_forever: True for a sleep without a duration.
        descriptors: The awaited descriptors.
        processes: Processes that hold the lock on a file.
        children: The child process that it waits for, or the candidates.
        is_any_child: True if it waits for any of its children.
        path: The file to open; the file that another thread is loading, as passed to
            ``require``; or the constant to autoload.
        lock: Address of a native lock.
        ractor: Number of the awaited ractor, as in ``RubyThread``.
        native: UDP sockets that native threads wait for, if the method resolves a
            host's name in such threads.
    """

    kind: WaitKind
    call: str = ""
    system_call: str = ""
    object: int = 0
    class_name: str = ""
    holder: Waiter | None = None
    is_free: bool = False
    length: int | None = None
    limit: int | None = None
    waiting: int | None = None
    seconds: float | None = None
    is_forever: bool = False
    descriptors: tuple[Descriptor, ...] = ()
    processes: tuple[OtherProcess, ...] = ()
    children: tuple[OtherProcess, ...] = ()
    is_any_child: bool = False
    path: str = ""
    lock: int = 0
    ractor: int | None = None
    native: tuple[Descriptor, ...] = ()
