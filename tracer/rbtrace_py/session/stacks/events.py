"""Events at which stacks are walked: those that a word means."""

from __future__ import annotations

from rbtrace_py.bpf.stack_walker import StackWalker
from rbtrace_py.session.stacks.probe_events import FunctionEvents, ProbeEvents
from rbtrace_py.session.stacks.sampling_options import WalkEvent
from rbtrace_py.session.stacks.tracepoint_events import TracepointEvents
from rbtrace_py.session.targets.targets import Targets

Events = ProbeEvents | TracepointEvents


def events_of(targets: Targets, event: WalkEvent, walker: StackWalker) -> Events:
    """Return the events that a word means; entering attaches to them.

    Raises UsageError, NoSuchProbe, NotPermitted or BpfError.
    """
    kind, colon, _ = event.word.partition(":")
    if colon and kind == "uprobe":
        return FunctionEvents(targets, event, walker)
    if colon and kind in ("tracepoint", "syscall"):
        return TracepointEvents(event, walker)
    return ProbeEvents(targets, event, walker)
