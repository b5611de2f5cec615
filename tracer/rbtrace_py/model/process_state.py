"""State of a process as its agent reports it; strings as the process sent them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Scalar = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The value of code: its ``inspect``, its class, and the time it took in ns."""

    value: str
    class_name: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception instead of a value; backtrace: the innermost first."""

    class_name: str
    message: str
    backtrace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadBacktrace:
    """A thread as Ruby has it.

    native_id: the kernel's, in the process's pid namespace; None before Ruby 3.1
    status: as ``Thread#status`` says, None if it ended
    backtrace: as ``Thread#backtrace`` has it, the innermost first
    """

    native_id: int | None
    name: str | None
    status: str | None
    is_main: bool
    is_agent: bool
    backtrace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """``GC.stat``, ``ObjectSpace.count_objects`` and the kernel's view, in bytes."""

    gc: Mapping[str, Scalar]
    objects: Mapping[str, Scalar]
    rss: int | None
    pss: int | None
    swap: int | None
