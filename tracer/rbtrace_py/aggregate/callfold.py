"""Call trees folded: how often each path of calls was taken, and its own time.

Fed with what ``calls.CallNesting`` makes of records. A call costs the same however
deep it is, and what is kept has bounds: calls on new paths when there is no more room
are one, ``(other)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rbtrace_py.aggregate.calls import CallStack, Happened, Thread, Told
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, StackCounts
from rbtrace_py.aggregate.stacktree import MAX_NODES
from rbtrace_py.aggregate.tables import printable
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    Stack,
    ThreadState,
)

GARBAGE = Frame(FrameKind.GC, "(garbage collection)", "(garbage collection)", "", None)
DEEPER = Frame(FrameKind.MARKER, "(deeper)", "(deeper)", "", None)
"""The last frame of stacks that are deeper than MAX_FRAMES."""
MAX_FRAMES = 1000
MAX_THREADS = 1 << 13
"""The calls of those that come later are of a thread that nobody knows."""
_MAX_STACKS = 1 << 16
"""With calls that are open; of others none is counted."""
_LAST = (OTHER, DEEPER)
_NOBODY = RubyThread(0, None, 0, "")


@dataclass(slots=True, eq=False)
class _Node:
    """A path of calls; own: nanoseconds in its last one, less those in others."""

    frame: Frame | None
    depth: int
    calls: int = 0
    own: int = 0
    below: dict[object, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    node: _Node
    below: int = 0
    """Nanoseconds in calls from it."""


class CallFold:
    """Counts and times by thread and path.

    names: of threads; more may come
    calls: that ended; unreturned: of them those that were not seen to return
    other: calls on paths for which there was no room
    lost: events that are missing
    """

    def __init__(
        self, names: Mapping[Thread, str] | None = None, max_nodes: int = MAX_NODES
    ) -> None:
        self.calls = self.unreturned = self.other = self.lost = 0
        self._names = {} if names is None else names
        self._room = max_nodes
        self._threads: dict[tuple[int, int, int], RubyThread] = {}
        self._roots: dict[RubyThread, _Node] = {}
        self._open: dict[CallStack, list[_Open]] = {}

    def add(self, told: Told) -> None:
        """Take in one event; those of each stack in order."""
        event = told.event
        if event.what is Happened.LOST:
            self.lost += event.count
        elif event.what is Happened.ENTERED:
            self._enter(told)
        elif event.what in (Happened.RETURNED, Happened.ENDED):
            if event.start is not None:
                self._leave(told)
        elif event.what is Happened.COLLECTED and event.start is not None:
            self._collected(told)

    def _enter(self, told: Told) -> None:
        stack = told.event.stack
        if stack not in self._open and len(self._open) >= _MAX_STACKS:
            return
        calls = self._open.setdefault(stack, [])
        above = calls[-1].node if calls else self._root(told.pid, stack)
        calls.append(_Open(self._below(above, told.method)))

    def _leave(self, told: Told) -> None:
        calls = self._open.get(told.event.stack)
        if not calls:
            return
        call = calls.pop()
        # What was collected in it may be later than the last that is known of it.
        time = max(told.event.duration or 0, call.below)
        call.node.calls += 1
        call.node.own += time - call.below
        self.calls += 1
        self.unreturned += told.event.what is Happened.ENDED
        self.other += call.node.frame is OTHER
        if calls:
            calls[-1].below += time
        else:
            del self._open[told.event.stack]

    def _collected(self, told: Told) -> None:
        calls = self._open.get(told.event.stack)
        time = told.event.duration or 0
        above = calls[-1].node if calls else self._root(told.pid, told.event.stack)
        node = self._below(above, GARBAGE)
        node.calls += 1
        node.own += time
        if calls:
            calls[-1].below += time

    def _root(self, pid: int, stack: CallStack) -> _Node:
        key = (pid, stack.tid, stack.thread)
        thread = self._threads.get(key)
        if thread is None and len(self._threads) >= MAX_THREADS:
            return self._roots.setdefault(_NOBODY, _Node(None, 0))
        if thread is None:
            name, is_main = self._names.get((pid, stack.tid), ""), stack.tid == pid
            thread = RubyThread(
                pid, stack.tid or None, stack.thread, name, is_main=is_main
            )
            self._threads[key] = thread
            self._roots[thread] = _Node(None, 0)
        return self._roots[thread]

    def _below(self, above: _Node, what: CalledMethod | Frame) -> _Node:
        found = above.below.get(what)
        if found is not None:
            return found
        if above.frame in _LAST:
            return above
        if self._room <= 0 or above.depth >= MAX_FRAMES:
            what = OTHER if self._room <= 0 else DEEPER
            if what in above.below:
                return above.below[what]
        self._room -= 1
        frame = what if isinstance(what, Frame) else frame_of(what)
        node = above.below[what] = _Node(frame, above.depth + 1)
        return node

    def take(
        self, statistics: Statistics, calls: StackCounts | None = None
    ) -> StackCounts:
        """Every path as a stack, and begin anew; calls that are open go on.

        A stack's weight is the time of its own, or how many calls there were.

        statistics: of the measurement; ``unit`` says which of them it is to be
        calls: gets every path with how many there were
        """
        samples = statistics.samples
        counts = StackCounts(statistics)
        is_time = statistics.unit == "ns"
        for thread, root in self._roots.items():
            for frames, node in _paths(root):
                stack = Stack(frames)
                add_weight(counts, thread, stack, node.own if is_time else node.calls)
                if calls is not None:
                    add_weight(calls, thread, stack, node.calls)
                node.own = node.calls = 0
        statistics.samples = samples
        return counts


def add_weight(
    counts: StackCounts, thread: RubyThread, stack: Stack, weight: int
) -> None:
    """A path without any is left out."""
    if weight:
        counts.add(Sample(0, thread, ThreadState.UNKNOWN, stack, weight))


def _paths(root: _Node) -> Iterator[tuple[tuple[Frame, ...], _Node]]:
    """Frames from the root on, and the node, of all below it; without recursion."""
    waiting: list[tuple[tuple[Frame, ...], _Node]] = [((), root)]
    while waiting:
        frames, node = waiting.pop()
        if node.frame is not None:
            frames = (*frames, node.frame)
            yield frames, node
        waiting += [(frames, below) for below in reversed(node.below.values())]


def frame_of(method: CalledMethod) -> Frame:
    """As stacks that are sampled have it, but with the line of its definition."""
    kind = FrameKind.C if method.kind is MethodKind.C else FrameKind.RUBY
    name = printable(method.full_name)
    label = printable(method.name) if method.name else name
    return Frame(kind, name, label, printable(method.path or ""), method.line)
