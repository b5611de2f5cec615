"""Probes as events at which stacks are walked."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.stack_walker import EVENT_WAYS, StackWalker, event_maps
from rbtrace_py.errors import BpfError, NotPermitted, UsageError
from rbtrace_py.model.probes import OperandType, Probe
from rbtrace_py.session.probes.engine import AttachRequest, Engine
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.probes.slots import operand_slot
from rbtrace_py.session.stacks.sampling_options import EventOptions
from rbtrace_py.session.targets.targets import Targets

_INTEGERS = (OperandType.UNKNOWN, OperandType.INTEGER, OperandType.NIL)


class ProbeEvents(ProbeSession):
    """The hits of the probes that ``event.word`` means.

    walker: of the targets; it counts the stacks
    """

    command = "stacks"
    entry_ns = 750
    """Of a hit, before and after its program: the trap (docs/performance.md)."""

    def __init__(
        self, targets: Targets, event: EventOptions, walker: StackWalker
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
        for flags in EVENT_WAYS:
            engine = self._engine(attacher, flags)
            try:
                attacher.load(engine.program, "on_hit")
            except BpfError:
                engine.close()
                if flags is EVENT_WAYS[-1]:
                    raise
            except NotPermitted:
                engine.close()
                raise
            else:
                self._engines.append(engine)
                return

    def _engine(self, attacher: Attacher, flags: dict[str, int]) -> Engine:
        event = self._event
        return Engine(
            attacher,
            self._tracked,
            "events.c",
            event_maps(event.every),
            flags,
            {
                **self._walker.numbers,
                "EVERY": event.every,
                "WEIGHTED": event.weight is not None,
                "DURATIONS": 0,
            },
            shared=self._walker.maps,
        )

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        weight = self._event.weight
        return [
            AttachRequest(probe, 0, (operand_slot(probe, weight),) if weight else ())
            for probe in self.picked(probes)
        ]

    @property
    def missed(self) -> int:
        """Hits that the kernel did not run the program for."""
        return sum(engine.missed() for engine in self._engines)
