"""Probes and functions as events at which stacks are walked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from rbtrace_py.bpf.attach import Attacher, attach_first
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.bpf.slots import operand_slot
from rbtrace_py.bpf.stack_walker import EVENT_WAYS, StackWalker, event_maps
from rbtrace_py.bpf.trap import trap_ns
from rbtrace_py.errors import NoSuchProbe, RbtraceError, UsageError
from rbtrace_py.linux.binaries import mapped_files
from rbtrace_py.linux.functions import files_named, functions_named, is_stepped
from rbtrace_py.linux.process import Process
from rbtrace_py.model.probes import OperandType, Probe
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.stacks.sampling_options import EventChoice
from rbtrace_py.session.targets.targets import Targets

SOURCE = "events.c"
_TRAP_NS = 750
"""Cost of a hit in ns, if it cannot be measured."""
_STEPPED_NS = 9000
"""Cost of a call in ns if the kernel single-steps the function's first instruction."""
_INTEGERS = (OperandType.UNKNOWN, OperandType.INTEGER, OperandType.NIL)


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
                f"{probe.full_name}: {weight} is no integer, so it is no weight",
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
            attacher, self._tracked, SOURCE, maps, flags, numbers, shared=walker.maps
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
                f"{event.word} names no function", "Write uprobe:LIB:SYMBOL"
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
