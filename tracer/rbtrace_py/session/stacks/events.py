"""Events at which stacks are walked, and their cost."""

from __future__ import annotations

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.bpf.stack_walker import StackWalker
from rbtrace_py.linux.closing import Starting
from rbtrace_py.session.stacks.event_cost import EventCost
from rbtrace_py.session.stacks.probe_events import FunctionEvents, ProbeEvents
from rbtrace_py.session.stacks.sampling_options import EventChoice
from rbtrace_py.session.stacks.tracepoint_events import TracepointEvents
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

Events = ProbeEvents | TracepointEvents


def events_of(targets: Targets, event: EventChoice, walker: StackWalker) -> Events:
    """Return the events that ``event.word`` names; entering attaches to them.

    Args:
        targets: The processes.
        event: The choice of events.
        walker: Walker of the targets' stacks.

    Raises:
        UsageError, NoSuchProbe, NotPermitted, BpfError
    """
    kind, colon, _ = event.word.partition(":")
    if colon and kind == "uprobe":
        return FunctionEvents(targets, event, walker)
    if colon and kind in ("tracepoint", "syscall"):
        return TracepointEvents(event, walker)
    return ProbeEvents(targets, event, walker)


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
        self._events = events_of(targets, event, walker)

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
