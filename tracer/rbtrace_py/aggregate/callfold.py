"""Folded call trees: the number of calls and the self time of each call path.

There may be millions of records (docs/agent/memory.md), so a record only updates
counts. Methods stay numbers and times stay ticks until the counts are read. The cost of
a call does not depend on its depth. Memory is bounded: when the tree is full, calls on
new paths are counted as ``(other)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallStack,
    ReportedCall,
    Thread,
)
from rbtrace_py.aggregate.stacks import OTHER, StackCounts
from rbtrace_py.aggregate.stacktree import MAX_NODES
from rbtrace_py.model.calls import CalledMethod, CallRecord, MethodKind
from rbtrace_py.model.printable import printable
from rbtrace_py.model.stacks import (
    GC_FRAME,
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    Stack,
    ThreadState,
)

DEEPER = Frame(FrameKind.MARKER, "(deeper)", "(deeper)", "", None)
"""The innermost frame of stacks deeper than MAX_FRAMES."""
MAX_FRAMES = 1000
MAX_THREADS = 1 << 13
"""Maximum number of threads; calls of further threads go to an unknown thread."""
_MAX_STACKS = 1 << 16
"""Maximum number of a recording's stacks with open calls; others are not counted."""
_MARKS = {-1: GC_FRAME, -2: DEEPER, -3: OTHER}
_GARBAGE, _DEEPER, _OTHER = _MARKS
"""Method numbers of the marker frames."""


@dataclass(slots=True, eq=False)
class _Node:
    """A call path; ``own`` is the self time in ticks of its innermost call."""

    method: int
    depth: int
    calls: int = 0
    own: int = 0
    below: dict[int, _Node] = field(default_factory=dict)


_Calls = tuple[list[_Node], list[int]]
"""The open calls of a stack: their nodes, and the time in ticks of each call's callees.

The outermost call is first, after the root of the thread.
"""


class CallFold:
    """Sink that adds up counts and times by thread and call path.

    The input is either the calls of the process ``pid``, from ``CallInterpreter``, or
    the events of a recording (``add``).

    Attributes:
        calls: Number of calls that ended.
        unreturned: Number of these calls whose return was not recorded.
        other: Number of these calls on paths for which the tree had no room.
        lost: Number of missing events.
    """

    def __init__(self, pid: int = 0, max_nodes: int = MAX_NODES) -> None:
        self.calls = self.unreturned = self.other = self.lost = 0
        self._pid = pid
        self._room = max_nodes
        self._stacks: dict[CallStack, _Calls] = {}
        self._roots: dict[tuple[int, int, int], _Node] = {}
        self._methods: dict[int, CalledMethod] = {}
        self._numbers: dict[CalledMethod, int] = {}

    def entered(self, stack: CallStack, call: CallRecord) -> None:
        calls = self._stacks.get(stack)
        if calls is None:
            if len(self._stacks) >= _MAX_STACKS:
                return
            calls = self._stacks[stack] = ([self._root(stack)], [0])
        path, below = calls
        above, method = path[-1], call[1]
        path.append(above.below.get(method) or self._grow(above, method))
        below.append(0)

    def returned(
        self,
        stack: CallStack,
        call: CallRecord | None,
        end: CallRecord,
        cpu_ns: int | None,
    ) -> None:
        if call is not None:
            self._end(stack, call[0], end[0])

    def ended(self, stack: CallStack, call: CallRecord, time: int) -> None:
        self.unreturned += self._end(stack, call[0], time)

    def occurred(self, event: CallEvent) -> None:
        if event.what is CallEventKind.LOST:
            self.lost += event.count
        elif event.what is CallEventKind.COLLECTED and event.start is not None:
            stack, took = event.stack, max(event.time - event.start, 0)
            path, below = self._stacks.get(stack) or ([self._root(stack)], [0])
            node = path[-1].below.get(_GARBAGE) or self._grow(path[-1], _GARBAGE)
            node.calls += 1
            node.own += took
            below[-1] += took

    def add(self, reported: ReportedCall) -> None:
        """Add an event of a recording; events of a stack must be in order."""
        event = reported.event
        if event.what is CallEventKind.ENTERED:
            method = self._number(reported.method)
            self.entered(event.stack, (event.time, method, event.depth, 0, 0))
        elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            if event.start is not None:
                is_known = self._end(event.stack, event.start, event.time)
                self.unreturned += is_known and event.what is CallEventKind.ENDED
        else:
            self.occurred(event)

    def _end(self, stack: CallStack, start: int, time: int) -> bool:
        """End the innermost call of a stack; return False if the stack is unknown."""
        calls = self._stacks.get(stack)
        if calls is None:
            return False
        path, below = calls
        node, callees = path.pop(), below.pop()
        took = time - start
        # A garbage collection inside the call may end after its last known record.
        if took < callees:
            took = callees
        below[-1] += took
        node.calls += 1
        node.own += took - callees
        self.calls += 1
        if node.method == _OTHER:
            self.other += 1
        if len(path) == 1:
            del self._stacks[stack]
        return True

    def _number(self, method: CalledMethod) -> int:
        number = self._numbers.get(method)
        if number is None:
            number = self._numbers[method] = len(self._numbers)
            self._methods[number] = method
        return number

    def _root(self, stack: CallStack) -> _Node:
        key = (stack.pid, stack.tid, stack.thread)
        root = self._roots.get(key)
        if root is None:
            if len(self._roots) >= MAX_THREADS:
                key = (self._pid, 0, 0)
            root = self._roots.setdefault(key, _Node(0, 0))
        return root

    def _grow(self, above: _Node, method: int) -> _Node:
        if above.method in (_OTHER, _DEEPER):
            return above
        if self._room <= 0:
            method = _OTHER
        elif above.depth >= MAX_FRAMES:
            method = _DEEPER
        node = above.below.get(method)
        if node is None:
            self._room -= 1
            node = above.below[method] = _Node(method, above.depth + 1)
        return node

    def take(
        self,
        counts: StackCounts,
        names: Mapping[Thread, str],
        duration: Callable[[int], int] | None,
        calls: StackCounts | None = None,
        name: Callable[[int], CalledMethod] | None = None,
    ) -> None:
        """Add every path to ``counts`` and reset the sums; open calls stay open.

        Args:
            counts: Gets the paths; their weight is self time or number of calls.
            names: Names of threads.
            duration: Converts ticks to nanoseconds for self time. If None, the weight
                is the number of calls.
            calls: Gets every path with its number of calls.
            name: Returns the method of a method number; not needed for a recording,
                whose events have names.
        """
        if name:
            self.name_methods(name)
        samples = counts.statistics.samples
        frames: dict[int, Frame] = dict(_MARKS)
        for (pid, tid, address), root in self._roots.items():
            is_main = tid == pid != 0
            thread = RubyThread(
                pid, tid or None, address, names.get((pid, tid), ""), is_main=is_main
            )
            for path, node in self._paths(root, frames):
                stack, weight = Stack(path), node.calls
                if calls is not None:
                    _add_weight(calls, thread, stack, weight)
                if duration:
                    weight = duration(node.own)
                _add_weight(counts, thread, stack, weight)
                node.own = node.calls = 0
        counts.statistics.samples = samples

    def _paths(
        self, root: _Node, frames: dict[int, Frame]
    ) -> Iterator[tuple[tuple[Frame, ...], _Node]]:
        """Yield each path below a root, root first, and its node; without recursion."""
        waiting: list[tuple[tuple[Frame, ...], _Node]] = [
            ((), node) for node in reversed(root.below.values())
        ]
        while waiting:
            above, node = waiting.pop()
            frame = frames.get(node.method)
            if frame is None:
                frame = frames[node.method] = frame_of(self._methods[node.method])
            path = (*above, frame)
            yield path, node
            waiting += [(path, below) for below in reversed(node.below.values())]

    def name_methods(self, name: Callable[[int], CalledMethod]) -> None:
        """Name the methods now; this is impossible once their process has exited."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            for method, below in node.below.items():
                if method >= 0 and method not in self._methods:
                    self._methods[method] = name(method)
                waiting.append(below)


def _add_weight(
    counts: StackCounts, thread: RubyThread, stack: Stack, weight: int
) -> None:
    """Count a path, unless its weight is 0."""
    if weight:
        counts.add(Sample(0, thread, ThreadState.UNKNOWN, stack, weight))


def frame_of(method: CalledMethod) -> Frame:
    """Return a method's frame as in sampled stacks, with the line of its definition."""
    kind = FrameKind.C if method.kind is MethodKind.C else FrameKind.RUBY
    name = printable(method.full_name)
    label = printable(method.name) if method.name else name
    return Frame(kind, name, label, printable(method.path or ""), method.line)
