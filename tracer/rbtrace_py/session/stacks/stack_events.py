"""Events at which stacks are walked: probes, functions, and kernel tracepoints."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.bpf.attach import Attacher, PerfTracepoint, attach_first
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.bpf.program import Program
from rbtrace_py.bpf.slots import operand_slot
from rbtrace_py.bpf.stack_walker import EVENT_WAYS, StackWalker, event_maps
from rbtrace_py.bpf.trap import trap_ns
from rbtrace_py.errors import NoSuchProbe, RbtraceError, UsageError
from rbtrace_py.linux.binaries import mapped_files
from rbtrace_py.linux.closing import Starting
from rbtrace_py.linux.functions import files_named, functions_named, is_stepped
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.tracepoints import (
    RecordField,
    Tracepoint,
    read_system_call,
    read_tracepoint,
)
from rbtrace_py.model.probes import OperandType, Probe
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.stacks.event_cost import EventCost
from rbtrace_py.session.stacks.sampling_options import EventChoice
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

_SOURCE = "events.c"
_TRAP_NS = 750
"""Cost of a hit in ns, if it cannot be measured."""
_STEPPED_NS = 9000
"""Cost of a call in ns if the kernel single-steps the function's first instruction."""
_INTEGERS = (OperandType.UNKNOWN, OperandType.INTEGER, OperandType.NIL)


class EventSampling(Starting):
    """The events of a sampling; entering attaches to them.

    Args:
        targets: The processes.
        event: The choice of events.
        walker: Walker of the targets' stacks, which counts them.

    Attributes:
        cost: The cost so far.
    """

    def __init__(
        self, targets: Targets, event: EventChoice, walker: StackWalker
    ) -> None:
        self._event = event
        self._walker = walker
        self._events = _events_of(targets, event, walker)

    def _start(self) -> None:
        self._events.__enter__()
        self.cost = EventCost(self._events.entry_ns, lambda: self._walker.counters)

    @property
    def notes(self) -> list[str]:
        """Notes for the user, one per line."""
        return self._events.notes

    @property
    def is_too_costly(self) -> bool:
        """True if the events cost more than the user accepted."""
        return self.cost.is_too_high and not self._event.at_any_cost

    def refresh(self) -> None:
        """Update processes, files, and the cost."""
        self._events.refresh()
        self.cost.measure()

    def finish(self, statistics: Statistics, notes: Notes) -> None:
        """Stop walking and report losses; collected stacks remain available."""
        self.cost.measure(is_last=True)
        self._events.finish()
        missing = self._events.missing
        statistics.failed += self._events.missed
        statistics.has_gaps |= bool(missing)
        notes.add(*self.notes, *missing)

    def close(self) -> None:
        self._events.close()


def _events_of(
    targets: Targets, event: EventChoice, walker: StackWalker
) -> ProbeEvents | TracepointEvents:
    """Return the events that ``event.word`` names; entering attaches to them."""
    kind, colon, _ = event.word.partition(":")
    if colon and kind == "uprobe":
        return FunctionEvents(targets, event, walker)
    if colon and kind in ("tracepoint", "syscall"):
        return TracepointEvents(event, walker)
    return ProbeEvents(targets, event, walker)


class ProbeEvents(ProbeSession):
    """The hits of the probes that ``event.word`` names.

    Args:
        targets: The processes.
        event: The choice of events.
        walker: Walker of the targets' stacks, which counts them.
    """

    command = "stacks"
    measures_cost = False  # see EventCost
    limits_cost = True
    entry_ns = 0
    """Cost of a hit before and after its program (the trap), in ns."""

    def __init__(
        self, targets: Targets, event: EventChoice, walker: StackWalker
    ) -> None:
        super().__init__(targets, [event.word], ProbeOptions(confirm=event.confirm))
        self._event = event
        self._walker = walker

    def missing_operands(self, probe: Probe) -> list[str]:
        weight = self._event.weight
        return [weight] if weight and probe.operand(weight) is None else []

    def plan(self, probes: Sequence[Probe]) -> None:
        self.check_words(probes)
        for probe in self.picked(probes):
            self._check_type(probe)

    def _check_type(self, probe: Probe) -> None:
        weight = self._event.weight
        index = probe.operand(weight) if weight else None
        if index is not None and probe.operands[index].type not in _INTEGERS:
            raise UsageError(
                f"{probe.full_name}: {weight} is not an integer and cannot be a weight",
                f"Use another of its arguments: {probe.signature}",
            )

    def make_engines(self, attacher: Attacher) -> None:
        with ExitStack() as stack:
            engine = attach_first(
                stack,
                EVENT_WAYS,
                lambda attempt, way: self._make(attempt, attacher, way),
            )
            stack.pop_all()  # the session closes its engines
        self._engines.append(engine)
        self.entry_ns = self.entry_ns or _trap_ns(attacher)

    def _make(
        self, stack: ExitStack, attacher: Attacher, flags: Mapping[str, int]
    ) -> Engine:
        event, walker = self._event, self._walker
        is_weighted = event.weight is not None
        numbers = {**walker.event_numbers(event.every, is_weighted), "DURATIONS": 0}
        maps = event_maps(event.every)
        engine = Engine(
            attacher, self._tracked, _SOURCE, maps, flags, numbers, shared=walker.maps
        )
        stack.callback(engine.close)
        attacher.load(engine.program, "on_hit")
        return engine

    def _note(self, attacher: Attacher) -> None:
        super()._note(attacher)
        # Other processes map a library, too, so it is attached per process.
        if self.targets.follow and not all(p.binary.is_image for p in self.probes):
            self.notes.append(
                "events of child processes are seen once they are found, up to 100 ms"
                " late"
            )

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        weight = self._event.weight
        return [
            AttachRequest(probe, 0, (operand_slot(probe, weight),) if weight else ())
            for probe in self.picked(probes)
        ]

    @property
    def missed(self) -> int:
        """Number of hits for which the kernel did not run the program."""
        return sum(engine.missed() for engine in self._engines)

    @property
    def missing(self) -> list[str]:
        """Events missing from the counts, one note per line."""
        if not self.late_probes:
            return []
        one = "1 probe was attached late: its first events are missing"
        many = f"{self.late_probes} probes were attached late: their first events"
        return [one if self.late_probes == 1 else f"{many} are missing"]


def _trap_ns(attacher: Attacher) -> int:
    with suppress(RbtraceError, OSError):
        return round(trap_ns(attacher))
    return _TRAP_NS


class FunctionEvents(ProbeEvents):
    """Calls of a function: ``SYMBOL`` of the files that ``LIB`` matches."""

    def __init__(
        self, targets: Targets, event: EventChoice, walker: StackWalker
    ) -> None:
        _, _, place = event.word.partition(":")
        self._library, _, self._name = place.rpartition(":")
        if not (self._library and self._name):
            raise UsageError(
                f"{event.word} does not name a function", "Write uprobe:LIB:SYMBOL"
            )
        super().__init__(targets, replace(event, word=place), walker)

    def find(self, process: Process) -> list[Probe]:
        found = functions_named(process, self._library, self._name)
        if any(is_stepped(process, probe) for probe in found):
            self.entry_ns = _STEPPED_NS
        return found

    def check(self, probes: Sequence[Probe]) -> None:
        if not probes:
            raise self._unknown()

    def _unknown(self) -> NoSuchProbe:
        """Return an error that names the missing function or file."""
        files: set[str] = set()
        for process in self.targets.alive():
            with suppress(RbtraceError):
                if named := files_named(process, self._library):
                    path = named[0].binary.path
                    return NoSuchProbe(
                        f"{path} has no function {self._name}",
                        f"List its functions with `nm -D --defined-only {path}`",
                        self._name,
                    )
                files |= {file.binary.path for file in mapped_files(process)}
        names = sorted({path.rpartition("/")[2] for path in files})
        near = difflib.get_close_matches(self._library, names, 3, 0.3)
        return NoSuchProbe(
            f"the process has mapped no file {self._library}",
            f"Mapped are {', '.join(near or names[:8])}",
            self._library,
        )


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
                f"{self._event.word} has no integer field {name}",
                f"Use one of {names}" if names else "Leave out --weight: it has none",
            )
        return fields[name]

    def _start(self) -> None:
        attach_first(self._stack, EVENT_WAYS, self._attach)

    def _attach(self, stack: ExitStack, flags: Mapping[str, int]) -> None:
        every, walker = self._event.every, self._walker
        is_weighted = self._field is not None
        numbers = walker.event_numbers(every, is_weighted, self._field)
        maps = event_maps(every)
        program = Program(_SOURCE, maps, flags, numbers, shared=walker.maps)
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
            f"{word} does not name a tracepoint", "Write tracepoint:CATEGORY:NAME"
        )
    return read_tracepoint(category, name)
