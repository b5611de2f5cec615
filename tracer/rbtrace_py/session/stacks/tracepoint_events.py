"""Kernel tracepoints as events at which stacks are walked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from rbtrace_py.bpf.attach import PerfTracepoint, attach_first
from rbtrace_py.bpf.program import Program
from rbtrace_py.bpf.stack_walker import EVENT_WAYS, StackWalker, event_maps
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.closing import Starting
from rbtrace_py.linux.tracepoints import (
    RecordField,
    Tracepoint,
    read_system_call,
    read_tracepoint,
)
from rbtrace_py.session.stacks.probe_events import SOURCE
from rbtrace_py.session.stacks.sampling_options import EventChoice
from rbtrace_py.session.targets.notes import Notes


class TracepointEvents(Starting):
    """Hits of a tracepoint, or entries of a system call, by threads of the targets.

    Args:
        event: The choice of events.
        walker: Walker of the targets' stacks, which counts them.

    Raises:
        UsageError, NoSuchProbe, NotPermitted, BpfError: On creation or entry.
    """

    entry_ns = 150
    """Cost of an event before and after its program, in ns: its record is discarded."""

    def __init__(self, event: EventChoice, walker: StackWalker) -> None:
        self.notes = Notes()
        self._event = event
        self._walker = walker
        self._tracepoint = _tracepoint(event.word)
        self._field = self._weight_field()
        self._stack = ExitStack()
        self._attached = ExitStack()
        self._program: Program | None = None

    def _weight_field(self) -> RecordField | None:
        name, fields = self._event.weight, self._tracepoint.fields
        if name is None:
            return None
        if name not in fields:
            names = ", ".join(fields)
            raise UsageError(
                f"{self._event.word} has no integer {name}",
                f"Use one of {names}" if names else "Leave out --weight: it has none",
            )
        return fields[name]

    def _start(self) -> None:
        attach_first(self._stack, EVENT_WAYS, self._attach)

    def _attach(self, stack: ExitStack, flags: Mapping[str, int]) -> None:
        every, walker = self._event.every, self._walker
        is_weighted = self._field is not None
        numbers = walker.event_numbers(every, is_weighted, self._field)
        program = Program(SOURCE, event_maps(every), flags, numbers, shared=walker.maps)
        stack.callback(program.close)
        number = self._tracepoint.number
        attached = PerfTracepoint(program, "on_event", number)
        self._attached.callback(attached.close)
        self._program = program

    def refresh(self) -> None:
        """Do nothing: the walker selects its processes itself."""

    def finish(self) -> None:
        self._attached.close()

    @property
    def missed(self) -> int:
        """Always 0: the kernel only counts events of all processes together."""
        return 0

    @property
    def missing(self) -> list[str]:
        """Events missing from the counts, one note per line."""
        missed = self._program.missed() if self._program is not None else 0
        if not missed:
            return []
        return [
            f"{missed:,} events of this machine were missed: they came while another"
            " program ran on their CPU"
        ]

    def close(self) -> None:
        self._attached.close()
        self._stack.close()


def _tracepoint(word: str) -> Tracepoint:
    kind, _, name = word.partition(":")
    if kind == "syscall":
        return read_system_call(name)
    category, _, name = name.partition(":")
    if not (category and name):
        raise UsageError(
            f"{word} names no tracepoint", "Write tracepoint:CATEGORY:NAME"
        )
    return read_tracepoint(category, name)
