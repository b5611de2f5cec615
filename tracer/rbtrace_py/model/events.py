"""One firing of a probe, as it came from the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rbtrace_py.model.probes import Probe


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a text whose memory could not be read."""


UNREADABLE = Unreadable()

Value = int | float | bool | str | None | Unreadable
"""Value of an operand. None is nil.

A text is decoded from UTF-8 with ``surrogateescape``, so that bytes that are
not UTF-8 are still there for whoever shows them.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One firing.

    time_ns: wall clock, integer nanoseconds since the epoch
    comm: the thread's name, decoded as texts are
    values: one for each of ``probe.operands``
    truncated: for each value, whether it is a text that was cut
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
        """The probe, with its provider: ``shop:checkout__end``."""
        return self.probe.full_name

    @property
    def arguments(self) -> dict[str, Value]:
        """``values`` by the names of the probe's arguments."""
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
    """An exception; ``backtrace`` as Ruby has it, if it was asked for."""

    backtrace: tuple[str, ...] = ()
