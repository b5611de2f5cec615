"""State of a process as its agent reports it; strings are unescaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Scalar = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of evaluated code: its ``inspect``, its class, and the time in ns."""

    value: str
    class_name: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception instead of a value; ``backtrace`` has the innermost frame first."""

    class_name: str
    message: str
    backtrace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadBacktrace:
    """A thread as Ruby reports it.

    Attributes:
        native_id: Kernel thread id in the process's PID namespace; None before Ruby
            3.1.
        name: Name of the thread.
        status: ``Thread#status``; None if the thread has ended.
        is_main: True for the main thread.
        is_agent: True for the agent's thread.
        backtrace: ``Thread#backtrace``, innermost frame first.
    """

    native_id: int | None
    name: str | None
    status: str | None
    is_main: bool
    is_agent: bool
    backtrace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """``GC.stat``, ``ObjectSpace.count_objects``, and the kernel's sizes in bytes."""

    gc: Mapping[str, Scalar]
    objects: Mapping[str, Scalar]
    rss: int | None
    pss: int | None
    swap: int | None
