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
    MAX_DEPTH,
    CallEventKind,
    CallStack,
    ReportedCall,
    Thread,
)
from rbtrace_py.aggregate.stacks import OTHER, StackCounts
from rbtrace_py.aggregate.stacktree import MAX_NODES
from rbtrace_py.model.calls import (
    CALL_ORPHAN,
    CalledMethod,
    CallKind,
    CallRecord,
    MethodKind,
)
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


@dataclass(slots=True)
class _Open:
    """A call that has not returned; ``below`` is the time in ticks of its callees."""

    method: int
    depth: int
    start: int
    node: _Node
    below: int = 0


@dataclass(slots=True)
class _Calls:
    """A Ruby stack; ``root`` is None until its thread is known.

    ``last`` is the time of its last entry or return, which all open calls enclose.
    """

    pid: int
    tid: int = 0
    thread: int = 0
    root: _Node | None = None
    open: list[_Open] = field(default_factory=list)
    gc_since: int | None = None
    last: int = 0


class CallFold:
    """Counts and times by thread and call path.

    The input is either the hook's records in the process ``pid`` (``feed``) or the
    events of a recording (``add``).

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
        self._stacks: dict[int, _Calls] = {}
        self._recorded: dict[CallStack, _Calls] = {}
        self._roots: dict[tuple[int, int, int], _Node] = {}
        self._methods: dict[int, CalledMethod] = {}
        self._numbers: dict[CalledMethod, int] = {}

    def feed(self, stream: int, record: CallRecord) -> None:
        """Add a record of a stream; records of a stream must be in order."""
        time, method, depth, kind, flags = record
        stack = self._stacks.get(stream)
        if stack is None:
            stack = self._stacks[stream] = _Calls(self._pid)
        if kind in (CallKind.ENTRY, CallKind.C_ENTRY):
            if depth <= MAX_DEPTH:
                self._enter(stack, time, method, depth)
        elif kind in (CallKind.RETURN, CallKind.C_RETURN):
            if not flags & CALL_ORPHAN:
                self._leave(stack, time, method, depth)
        else:
            self._apart(stream, stack, record)

    def add(self, reported: ReportedCall) -> None:
        """Add an event of a recording; events of a stack must be in order."""
        event = reported.event
        if event.what is CallEventKind.LOST:
            self.lost += event.count
        elif event.what is CallEventKind.ENTERED:
            stack = self._recorded.get(event.stack)
            if stack is None:
                if len(self._recorded) >= _MAX_STACKS:
                    return
                stack = self._recorded[event.stack] = _recorded(reported)
            self._enter(stack, event.time, self._number(reported.method), event.depth)
        elif event.start is None:
            return
        elif event.what is CallEventKind.COLLECTED:
            stack = self._recorded.get(event.stack) or _recorded(reported)
            stack.gc_since = event.start
            self._collected(stack, event.time)
        elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            stack = self._recorded.get(event.stack)
            if stack is None:
                return
            self.unreturned += event.what is CallEventKind.ENDED
            self._close(stack, event.time)
            if not stack.open:
                del self._recorded[event.stack]

    def _number(self, method: CalledMethod) -> int:
        number = self._numbers.get(method)
        if number is None:
            number = self._numbers[method] = len(self._numbers)
            self._methods[number] = method
        return number

    def finish(self, time: int, name: Callable[[int], CalledMethod]) -> None:
        """End the open calls, and name the methods.

        Args:
            time: Time of the end in ticks.
            name: Returns the method of a method number.
        """
        for stack in self._stacks.values():
            self._end(stack, 0, time)
        self._name(name)

    def _enter(self, stack: _Calls, time: int, method: int, depth: int) -> None:
        calls = stack.open
        if calls and calls[-1].depth >= depth:
            self._end(stack, depth, stack.last)
        stack.last = time
        above = calls[-1].node if calls else stack.root or self._root(stack)
        node = above.below.get(method) or self._grow(above, method)
        calls.append(_Open(method, depth, time, node))

    def _leave(self, stack: _Calls, time: int, method: int, depth: int) -> None:
        calls, last = stack.open, stack.last
        stack.last = time
        if calls and calls[-1].depth > depth:
            self._end(stack, depth + 1, last)
        if not calls or calls[-1].depth != depth:
            return
        if calls[-1].method != method:
            self._end(stack, depth, last)
            return
        self._close(stack, time)

    def _close(self, stack: _Calls, time: int) -> None:
        """End the innermost call."""
        calls = stack.open
        call = calls.pop()
        # A garbage collection inside the call may end after its last known record.
        took = max(time - call.start, call.below, 0)
        node = call.node
        node.calls += 1
        node.own += took - call.below
        self.calls += 1
        if node.method == _OTHER:
            self.other += 1
        if calls:
            calls[-1].below += took

    def _end(self, stack: _Calls, depth: int, time: int) -> None:
        """End calls of at least this depth without a return, innermost first."""
        while stack.open and stack.open[-1].depth >= depth:
            self.unreturned += 1
            self._close(stack, time)

    def _apart(self, stream: int, stack: _Calls, record: CallRecord) -> None:
        """Handle a record that is not a call or return."""
        time, method, _, kind, _ = record
        if kind == CallKind.LOST:
            self.lost += method
        elif kind == CallKind.STACK:
            self._end(stack, 0, stack.last)
            self._stacks[stream] = _Calls(self._pid)
        elif kind == CallKind.PLACE:
            stack.tid = method
        elif kind == CallKind.THREAD:
            stack.thread = time
        elif kind == CallKind.GC_BEGIN:
            stack.gc_since = time
        elif kind == CallKind.GC_END:
            self._collected(stack, time)

    def _collected(self, stack: _Calls, time: int) -> None:
        since, stack.gc_since = stack.gc_since, None
        if since is None:
            return
        took, calls = max(time - since, 0), stack.open
        above = calls[-1].node if calls else stack.root or self._root(stack)
        node = above.below.get(_GARBAGE) or self._grow(above, _GARBAGE)
        node.calls += 1
        node.own += took
        if calls:
            calls[-1].below += took

    def _root(self, stack: _Calls) -> _Node:
        key = (stack.pid, stack.tid, stack.thread)
        if key not in self._roots and len(self._roots) >= MAX_THREADS:
            key = (self._pid, 0, 0)
        stack.root = self._roots.setdefault(key, _Node(0, 0))
        return stack.root

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
            self._name(name)
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

    def _name(self, name: Callable[[int], CalledMethod]) -> None:
        """Name the methods now; this is impossible once their process has exited."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            for method, below in node.below.items():
                if method >= 0 and method not in self._methods:
                    self._methods[method] = name(method)
                waiting.append(below)


def _recorded(reported: ReportedCall) -> _Calls:
    return _Calls(reported.pid, reported.event.stack.tid, reported.event.stack.thread)


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
