"""What a thread or a fiber waits for, and who keeps it from going on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rbtrace_py.model.stacks import RubyThread

ON_CPU = "on CPU"
"""The part of a time in which a thread did not wait."""


class WaitKind(str, Enum):
    """Kinds of waits, as programs read them."""

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
    """A process that the target waits for, or may; ``command`` is safe to show."""

    pid: int
    command: str = ""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor that is waited for; texts are safe to show.

    action: what is to be done with it: ``read``, ``write``, ``accept`` …
    target: what it is: ``pipe:[123]``, ``tcp 127.0.0.1:4 -> 127.0.0.1:80``, a path;
        empty where not known
    other_ends: descriptors of the same process that are a pipe's other end
    other_processes: those that have that end, where it itself has not
    watched: descriptors that an epoll descriptor watches
    """

    number: int
    action: str
    target: str = ""
    other_ends: tuple[int, ...] = ()
    other_processes: tuple[OtherProcess, ...] = ()
    watched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiter:
    """A thread that others wait for, or one of its fibers.

    fiber: address of the fiber, 0 where not known
    is_suspended: the thread does not run that fiber now: it may have ended where its
        address is not known
    has_ended: the fiber has ended, and will never give back what it holds
    """

    thread: RubyThread
    fiber: int = 0
    is_suspended: bool = False
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """What one thread or fiber waits for; texts are safe to show.

    call: the method that waits (``Thread::Queue#pop``), empty where there is none
    system_call: the kernel's name of the call it is in, empty where not known or where
        that says no more
    object, class_name: address and class of the object that is waited for, 0 and empty
    holder: who must act first: holds the lock, or is to end; None: nobody is known
    is_free: nobody held the lock when it was read
    length, limit: items in a queue, and how many it takes; None where not known
    waiting: threads that wait at the queue, this one among them
    seconds: how long a sleep takes, or another wait at most, None: for ever, or not
        known
    is_forever: a sleep that has no end of its own
    descriptors: those that are waited for
    processes: those that hold the lock on a file
    children: the process it waits for, or those that it may wait for
    is_any_child: it waits for any of its children
    path: of a file that is to be opened, or of one that another thread is loading, as
        ``require`` was given it; or the constant that it autoloads
    lock: address of a native lock
    ractor: number of the ractor it waits for, as its threads have it
    native: UDP sockets that native threads wait for meanwhile, where the
        method leaves it to such threads to look up a host's name
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
