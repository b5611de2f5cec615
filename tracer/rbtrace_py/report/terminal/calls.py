"""Calls as they happen, nested as rbtrace's users know them.

A call without nested calls is a line with its time. Otherwise its name opens a block of
indented calls, and closes the block with the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rbtrace_py.aggregate.calls import CallEventKind, CallStack, ReportedCall, Thread
from rbtrace_py.model.calls import CalledMethod
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.events import clock
from rbtrace_py.report.text import escape, inspected

_CLOCK_WIDTH = len("12:34:56.789012 ")
_LABEL_WIDTH = 8
_MOST_INDENTED = 100
"""Deepest indentation. Deeper lines begin with their depth as a number."""
_MOST_KEPT = 4096
"""Maximum number of lines that a block buffers until its end, with --by-thread."""
_NAMES_KEPT = 65_536
_THREADS_KEPT = 65_536


@dataclass(frozen=True, slots=True)
class CallsForm:
    """Layout of the lines of calls.

    Attributes:
        times: True if lines begin with the time at which a call began.
        durations: True if lines contain durations.
        indent: Spaces per level.
        rbtrace_times: True for durations as rbtrace writes them: seconds, six decimals.
        on_return: True if each call is one line when it returns, as for slow calls.
        by_thread: True if an outermost call is printed as one block, below its thread's
            name.
        column: True if each line begins with the thread. Otherwise, lines do so once a
            second thread appears.
        with_pid: True if the thread is written as PID/TID.
        names: Names of threads.
    """

    times: bool = False
    durations: bool = True
    rbtrace_times: bool = False
    indent: int = 2
    on_return: bool = False
    by_thread: bool = False
    column: bool = False
    with_pid: bool = False
    names: Mapping[Thread, str] | None = None


@dataclass(slots=True)
class _Block:
    """Lines of a stack, buffered until the outermost call ends."""

    first: ReportedCall
    lines: list[str] = field(default_factory=list)


class CallLines:
    """Converter of events to lines. It tracks open calls."""

    def __init__(self, form: CallsForm, style: Style) -> None:
        self._form = form
        self._style = style
        self._waiting: dict[CallStack, ReportedCall] = {}
        self._blocks: dict[CallStack, _Block] = {}
        self._names: dict[int, tuple[CalledMethod, str]] = {}
        self._has_nested = False
        self._column = form.column or form.with_pid
        self._running: dict[tuple[int, int], CallStack] = {}
        self._only: tuple[int, str] | None = None
        self._headed: CallStack | None = None

    def lines(self, reported: ReportedCall) -> list[str]:
        """Return the lines that an event adds, perhaps none."""
        if not self._form.by_thread:
            self._see(reported)
            return [*self._switched(reported), *self._of(reported)]
        return self._grouped(reported)

    def end(self, has_all: bool = False) -> list[str]:
        """Return the buffered lines (a recording may end early).

        Args:
            has_all: True if as many calls as --count allows have returned. Open calls
                are then left out.
        """
        rest: list[str] = []
        for reported in () if has_all else list(self._waiting.values()):
            lines = self._opened(reported.event.stack)
            if self._form.by_thread:
                block = self._blocks.setdefault(reported.event.stack, _Block(reported))
                block.lines += lines
            else:
                rest += lines
        for block in filter(lambda block: block.lines, self._blocks.values()):
            rest += self._headline(block.first) + block.lines
        self._blocks.clear()
        return rest

    def _grouped(self, reported: ReportedCall) -> list[str]:
        event = reported.event
        block = self._blocks.setdefault(event.stack, _Block(reported)).lines
        block += self._of(reported)
        is_whole = event.depth == 0 and event.what is not CallEventKind.ENTERED
        if not is_whole and len(block) < _MOST_KEPT:
            return []
        del self._blocks[event.stack]
        if not block:
            return []
        return self._headline(reported) + block

    def _headline(self, reported: ReportedCall) -> list[str]:
        stack = reported.event.stack
        if self._headed is stack:
            return []
        self._headed = stack
        name = (self._form.names or {}).get(reported.thread, "")
        words = f"thread {_number(stack)} {escape(name, self._style)}".rstrip()
        where = f"process {reported.pid} " if self._form.with_pid else ""
        return [self._style.bold(f"--- {where}{words}")]

    def _switched(self, reported: ReportedCall) -> list[str]:
        """Return the lines of the call that resumed the fiber of a thread.

        These lines precede the fiber's lines, because the call encloses them.
        """
        stack = reported.event.stack
        key = (reported.pid, stack.tid)
        before = self._running.get(key)
        if before is stack or not stack.tid:
            return []
        if len(self._running) >= _THREADS_KEPT:
            self._running.clear()
        self._running[key] = stack
        return [] if before is None else self._opened(before)

    def _of(self, reported: ReportedCall) -> list[str]:
        what = reported.event.what
        if what is CallEventKind.ENTERED:
            return self._entered(reported)
        if what is CallEventKind.RETURNED:
            return self._returned(reported)
        if what is CallEventKind.ENDED:
            return self._ended(reported)
        if what is CallEventKind.LOST:
            text = units.plural(reported.event.count, "event")
            line = self._line(reported, self._style.red(f"*** {text} lost"))
            return [*self._opened(reported.event.stack), line]
        if what is CallEventKind.COLLECTED:
            line = self._line(
                reported, self._name(reported.method) + self._time_of(reported)
            )
            return [*self._opened(reported.event.stack), line]
        return []

    def _entered(self, reported: ReportedCall) -> list[str]:
        if reported.event.depth:
            self._has_nested = True
        if self._form.on_return:
            return []
        opened = self._opened(reported.event.stack)
        self._waiting[reported.event.stack] = reported
        return opened

    def _opened(self, stack: CallStack) -> list[str]:
        """Return the line that opens the block of a call with nested calls."""
        waiting = self._waiting.pop(stack, None)
        if waiting is None:
            return []
        return [self._line(waiting, self._call(waiting))]

    def _returned(self, reported: ReportedCall) -> list[str]:
        event = reported.event
        if event.start is None:
            return []
        is_leaf = self._waiting.pop(event.stack, None) is not None
        dated = is_leaf or self._form.on_return
        name = self._call(reported) if dated else self._name(reported.method)
        text = name + self._time_of(reported)
        return [self._line(reported, text, dated), *self._gap(reported)]

    def _ended(self, reported: ReportedCall) -> list[str]:
        if self._waiting.pop(reported.event.stack, None) is not None:
            return [self._line(reported, self._call(reported)), *self._gap(reported)]
        return self._gap(reported)

    def _gap(self, reported: ReportedCall) -> list[str]:
        """Return an empty line after an outermost call, once anything was nested."""
        return [""] if self._has_nested and reported.event.depth == 0 else []

    def _line(self, reported: ReportedCall, text: str, dated: bool = True) -> str:
        event, form = reported.event, self._form
        start = ""
        if form.times:
            began = event.time if event.start is None else event.start
            start = f"{clock(began)} " if dated else " " * _CLOCK_WIDTH
        if not form.by_thread:
            start += self._label(reported)
        if form.indent and event.depth > _MOST_INDENTED:
            return f"{start}[{event.depth}] {text}"
        return f"{start}{' ' * (form.indent * event.depth)}{text}"

    def _see(self, reported: ReportedCall) -> None:
        """Begin each line with its thread once there are two threads or fibers."""
        if not self._column and reported.event.what in _PRINTED:
            here = (reported.pid, _number(reported.event.stack))
            self._column = self._only not in (None, here)
            self._only = here

    def _label(self, reported: ReportedCall) -> str:
        if not self._column:
            return ""
        label = _number(reported.event.stack)
        if self._form.with_pid:
            return f"{f'{reported.pid}/{label}':>{2 * _LABEL_WIDTH}} "
        return f"{label:>{_LABEL_WIDTH}} "

    def _time_of(self, reported: ReportedCall) -> str:
        if not self._form.durations:
            return ""
        event = reported.event
        if event.duration is None:
            return " <?>"
        if self._form.rbtrace_times:
            cpu = "" if event.cpu_ns is None else f" cpu {event.cpu_ns / 1e9:.6f}"
            return f" <{event.duration / 1e9:.6f}{cpu}>"
        text = units.duration(event.duration, self._style)
        if event.cpu_ns is not None:
            text += f", {units.duration(event.cpu_ns, self._style)} on CPU"
        return f" <{text}>"

    def _call(self, reported: ReportedCall) -> str:
        """Return ``String#gsub(self="hello", @test=123)``."""
        name = self._name(reported.method)
        if not reported.values:
            return name
        pairs = (
            f"{inspected(expression, self._style)}={inspected(value, self._style)}"
            for expression, value in reported.values
        )
        return f"{name}({', '.join(pairs)})"

    def _name(self, method: CalledMethod) -> str:
        known = self._names.get(id(method))
        if known is not None and known[0] is method:
            return known[1]
        if len(self._names) >= _NAMES_KEPT:
            self._names.clear()
        text = escape(method.full_name, self._style)
        self._names[id(method)] = (method, text)
        return text


_PRINTED = (CallEventKind.ENTERED, CallEventKind.COLLECTED)
"""Events that announce lines of a stack."""


def _number(stack: CallStack) -> str:
    """Return ``1234``, or for the second stack of a thread (a fiber's) ``1234.2``."""
    return f"{stack.tid}.{stack.fiber}" if stack.fiber > 1 else str(stack.tid)
