"""Callgrind's format: costs of lines, and inclusive costs of calls.

A sampler does not see calls, only that one method was inside another. So samples are
counted as calls, unless the calls were recorded. If a method recurs in a stack, only
its innermost call has a cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rbtrace_py import __version__
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.stacks import Frame, FrameKind
from rbtrace_py.report.exchange.rows import clean
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import counted, idle_text

Function = tuple[str, str]
"""File and name."""

Place = tuple[Function, int]
"""Function and line, which is 0 if it is unknown."""

Call = tuple[int, Function]
"""Line of the caller, and callee."""

_UNKNOWN_FILE = "???"


def callgrind_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield the lines of a file. Functions are sorted by file and name."""
    costs = _Costs(profile.counts, profile.calls)
    unit = profile.unit
    event = unit if unit == "ns" else counted(unit).capitalize()
    yield "# callgrind format"
    yield "version: 1"
    yield f"creator: rbtrace-py {__version__}"
    yield f"cmd: {clean(options.title or profile.meta.command or 'ruby')}"
    own = profile.counts.statistics
    if own.idle:
        yield f"desc: Note: {idle_text(own.idle, own.unit)}"
    yield "positions: line"
    yield f"events: {event}"
    yield f"summary: {profile.counts.weight}"
    names = _Names()
    for function in sorted(costs.functions):
        yield ""
        yield from _function(function, costs, names)
    yield ""
    yield f"totals: {profile.counts.weight}"


class _Costs:
    """Costs by function.

    Attributes:
        own: Cost of each line.
        calls: Inclusive cost of each call.
        numbers: Number of calls if they were recorded, or else their costs.
    """

    def __init__(self, counts: StackCounts, calls: StackCounts | None) -> None:
        self.own: dict[Function, Counter[int]] = {}
        self.calls: dict[Function, Counter[Call]] = {}
        self.numbers: dict[Function, Counter[Call]] = {}
        self._places: dict[Frame, Place] = {}
        self._take_costs(counts)
        if counts.statistics.unit == "calls":
            calls = counts
        if calls is None:
            self.numbers = self.calls
        else:
            self._take_calls(calls)

    def _take_costs(self, counts: StackCounts) -> None:
        for row in counts.rows():
            if not row.frames:
                continue
            path = self._path(row.frames)
            function, line = path[-1]
            self.own.setdefault(function, Counter())[line] += row.weight
            for caller, at, callee in _calls(path):
                calls = self.calls.setdefault(caller, Counter())
                calls[at, callee] += row.weight

    def _take_calls(self, counts: StackCounts) -> None:
        """Count each stack as calls of its innermost frame by the frame around it."""
        for row in counts.rows():
            if len(row.frames) < 2:
                continue
            (caller, at), (callee, _) = self._path(row.frames[-2:])
            self.numbers.setdefault(caller, Counter())[at, callee] += row.weight
            self.calls.setdefault(caller, Counter())[at, callee] += 0

    def _path(self, frames: Sequence[Frame]) -> list[Place]:
        known = self._places
        return [
            known[frame] if frame in known else known.setdefault(frame, place(frame))
            for frame in frames
        ]

    @property
    def functions(self) -> set[Function]:
        """All functions, including those that only appear as callees."""
        called = {callee for calls in self.calls.values() for _, callee in calls}
        return self.own.keys() | self.calls.keys() | called


def _calls(path: list[Place]) -> Iterator[tuple[Function, int, Function]]:
    """Yield the caller, line, and callee of each call in a stack.

    Only the innermost frame of a function counts as a caller. The cost of a function
    with its callees is then right, however it recurs.
    """
    seen = {path[-1][0]}
    for (caller, at), (callee, _) in zip(path[-2::-1], path[:0:-1], strict=True):
        if caller not in seen:
            seen.add(caller)
            yield caller, at, callee


def place(frame: Frame) -> Place:
    """Return the place of a frame; a C function has neither file nor line."""
    if frame.kind is FrameKind.C or not frame.path:
        return (_UNKNOWN_FILE, clean(frame.name)), 0
    return (clean(frame.path), clean(frame.name)), frame.line or 0


class _Names:
    """Name compression: ``(1) name`` at the first use, then ``(1)``."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def __call__(self, kind: str, name: str) -> str:
        number = self._known.get((kind, name))
        if number is not None:
            return f"({number})"
        self._known[kind, name] = len(self._known) + 1
        return f"({len(self._known)}) {name}"


def _function(function: Function, costs: _Costs, names: _Names) -> Iterator[str]:
    file, name = function
    yield f"fl={names('file', file)}"
    yield f"fn={names('function', name)}"
    for line, cost in sorted(costs.own.get(function, Counter()).items()):
        yield f"{line} {cost}"
    calls = costs.calls.get(function, Counter())
    numbers = costs.numbers.get(function, Counter())
    for (line, callee), cost in sorted(calls.items()):
        yield f"cfi={names('file', callee[0])}"
        yield f"cfn={names('function', callee[1])}"
        # The line of the callee is unknown.
        yield f"calls={numbers[line, callee]} 0"
        yield f"{line} {cost}"
