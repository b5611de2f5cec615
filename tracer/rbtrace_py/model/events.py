"""One hit of a probe, as the kernel recorded it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.model.probes import Probe


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a string whose memory could not be read."""


UNREADABLE = Unreadable()

Value = int | float | bool | str | None | Unreadable
"""Value of an operand. None is nil.

Strings are decoded from UTF-8 with ``surrogateescape``, which preserves invalid bytes.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One hit of a probe.

    Attributes:
        time_ns: Wall clock, integer nanoseconds since the epoch.
        pid: Process id.
        tid: Kernel thread id.
        comm: Name of the thread, decoded like string values.
        probe: The probe.
        values: One value per operand in ``probe.operands``.
        truncated: For each value, True if it is a string that was cut.
    """

    time_ns: int
    pid: int
    tid: int
    comm: str
    probe: Probe
    values: tuple[Value, ...] = ()
    truncated: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """The probe's name with its provider: ``shop:checkout__end``."""
        return self.probe.full_name

    @property
    def arguments(self) -> dict[str, Value]:
        """The ``values`` by the names of the probe's arguments."""
        return dict(zip(self.probe.argument_names, self.values, strict=False))


class RubyContext(NamedTuple):
    """The Ruby code that an event interrupted.

    Attributes:
        thread: Address of the rb_thread_t; 0 if unknown.
        fiber: Address of the rb_fiber_t; 0 if unknown.
    """

    thread: int
    fiber: int


@dataclass(frozen=True, slots=True)
class RaiseEvent(Event):
    """An exception; ``backtrace`` is Ruby's own, if it was requested."""

    backtrace: tuple[str, ...] = ()
