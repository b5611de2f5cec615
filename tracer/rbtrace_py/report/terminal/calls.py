"""Calls as they happen, nested as rbtrace's users know them; and as JSON.

A call with none inside is a line with its time. Else its name opens a block, in which
calls are indented, and closes it with the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rbtrace_py.aggregate.calls import CallStack, Happened, Thread, Told
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report import units
from rbtrace_py.report.json.results import Document
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.events import clock
from rbtrace_py.report.terminal.notes import lost
from rbtrace_py.report.text import escape, inspected

_CLOCK_WIDTH = len("12:34:56.789012 ")
_LABEL_WIDTH = 8
_MOST_INDENTED = 100
"""Of deeper calls the depth stands there as a number."""
_MOST_KEPT = 4096
"""Lines of a block that wait for its end, with --by-thread."""
_NAMES_KEPT = 65_536
_THREADS_KEPT = 65_536


@dataclass(frozen=True, slots=True)
class CallsForm:
    """How calls are shown.

    times: when each began; durations: how long it took; indent: spaces a level
    on_return: a line when a call returns, and none before (of slow calls)
    by_thread: an outermost call with all in it at once, below its thread's name
    column: the thread stands before each line; else once a second one shows up
    with_pid: it is PID/TID, from the first line on
    names: of threads
    """

    times: bool = False
    durations: bool = True
    indent: int = 2
    on_return: bool = False
    by_thread: bool = False
    column: bool = False
    with_pid: bool = False
    names: Mapping[Thread, str] | None = None


@dataclass(slots=True)
class _Block:
    """Lines of a stack that wait for the end of its outermost call."""

    first: Told
    lines: list[str] = field(default_factory=list)


class CallLines:
    """Makes lines of events; keeps what it needs of calls that are open."""

    def __init__(self, form: CallsForm, style: Style) -> None:
        self._form = form
        self._style = style
        self._waiting: dict[CallStack, Told] = {}
        self._blocks: dict[CallStack, _Block] = {}
        self._names: dict[int, tuple[CalledMethod, str]] = {}
        self._has_nested = False
        self._column = form.column or form.with_pid
        self._running: dict[tuple[int, int], CallStack] = {}
        self._only: tuple[int, str] | None = None
        self._headed: CallStack | None = None

    def lines(self, told: Told) -> list[str]:
        """What an event adds, perhaps nothing yet."""
        if not self._form.by_thread:
            self._see(told)
            return [*self._switched(told), *self._of(told)]
        return self._grouped(told)

    def end(self) -> list[str]:
        """What still waited for its end, as in a recording that was cut."""
        rest: list[str] = []
        for told in list(self._waiting.values()):
            lines = self._opened(told.event.stack)
            if self._form.by_thread:
                block = self._blocks.setdefault(told.event.stack, _Block(told))
                block.lines += lines
            else:
                rest += lines
        for block in self._blocks.values():
            rest += self._headline(block.first) + block.lines
        self._blocks.clear()
        return rest

    def _grouped(self, told: Told) -> list[str]:
        event = told.event
        block = self._blocks.setdefault(event.stack, _Block(told)).lines
        block += self._of(told)
        is_whole = event.depth == 0 and event.what is not Happened.ENTERED
        if not is_whole and len(block) < _MOST_KEPT:
            return []
        del self._blocks[event.stack]
        if not block:
            return []
        return self._headline(told) + block

    def _headline(self, told: Told) -> list[str]:
        stack = told.event.stack
        if self._headed is stack:
            return []
        self._headed = stack
        name = (self._form.names or {}).get(told.thread, "")
        words = f"thread {_number(stack)} {escape(name, self._style)}".rstrip()
        where = f"process {told.pid} " if self._form.with_pid else ""
        return [self._style.bold(f"--- {where}{words}")]

    def _switched(self, told: Told) -> list[str]:
        """Of a thread that goes on in another fiber, the call that it came from.

        What happens in the fiber happens while that goes on: it is printed before.
        """
        stack = told.event.stack
        key = (told.pid, stack.tid)
        before = self._running.get(key)
        if before is stack or not stack.tid:
            return []
        if len(self._running) >= _THREADS_KEPT:
            self._running.clear()
        self._running[key] = stack
        return [] if before is None else self._opened(before)

    def _of(self, told: Told) -> list[str]:
        what = told.event.what
        if what is Happened.ENTERED:
            return self._entered(told)
        if what is Happened.RETURNED:
            return self._returned(told)
        if what is Happened.ENDED:
            return self._ended(told)
        if what is Happened.LOST:
            number = told.event.count
            text = "1 event" if number == 1 else f"{units.whole(number)} events"
            line = self._line(told, self._style.red(f"*** {text} lost"))
            return [*self._opened(told.event.stack), line]
        if what is Happened.COLLECTED:
            line = self._line(told, self._name(told.method) + self._time_of(told))
            return [*self._opened(told.event.stack), line]
        return []

    def _entered(self, told: Told) -> list[str]:
        if told.event.depth:
            self._has_nested = True
        if self._form.on_return:
            return []
        opened = self._opened(told.event.stack)
        self._waiting[told.event.stack] = told
        return opened

    def _opened(self, stack: CallStack) -> list[str]:
        """The line of a call that turns out to have something in it."""
        waiting = self._waiting.pop(stack, None)
        if waiting is None:
            return []
        return [self._line(waiting, self._call(waiting))]

    def _returned(self, told: Told) -> list[str]:
        event = told.event
        if event.start is None:
            return []
        is_leaf = self._waiting.pop(event.stack, None) is not None
        dated = is_leaf or self._form.on_return
        name = self._call(told) if dated else self._name(told.method)
        text = name + self._time_of(told)
        return [self._line(told, text, dated), *self._gap(told)]

    def _ended(self, told: Told) -> list[str]:
        if self._waiting.pop(told.event.stack, None) is not None:
            return [self._line(told, self._call(told)), *self._gap(told)]
        return self._gap(told)

    def _gap(self, told: Told) -> list[str]:
        """After an outermost call, once anything was nested."""
        return [""] if self._has_nested and told.event.depth == 0 else []

    def _line(self, told: Told, text: str, dated: bool = True) -> str:
        event, form = told.event, self._form
        start = ""
        if form.times:
            began = event.time if event.start is None else event.start
            start = f"{clock(began)} " if dated else " " * _CLOCK_WIDTH
        if not form.by_thread:
            start += self._label(told)
        if form.indent and event.depth > _MOST_INDENTED:
            return f"{start}[{event.depth}] {text}"
        return f"{start}{' ' * (form.indent * event.depth)}{text}"

    def _see(self, told: Told) -> None:
        """From when there are two threads or fibers, each line says whose it is."""
        if not self._column and told.event.what in _PRINTED:
            here = (told.pid, _number(told.event.stack))
            self._column = self._only not in (None, here)
            self._only = here

    def _label(self, told: Told) -> str:
        if not self._column:
            return ""
        label = _number(told.event.stack)
        if self._form.with_pid:
            return f"{f'{told.pid}/{label}':>{2 * _LABEL_WIDTH}} "
        return f"{label:>{_LABEL_WIDTH}} "

    def _time_of(self, told: Told) -> str:
        if not self._form.durations:
            return ""
        event = told.event
        if event.duration is None:
            return " <?>"
        cpu = "" if event.cpu_ns is None else f" cpu {event.cpu_ns / 1e9:.6f}"
        return f" <{event.duration / 1e9:.6f}{cpu}>"

    def _call(self, told: Told) -> str:
        """``String#gsub(self="hello", @test=123)``."""
        name = self._name(told.method)
        if not told.values:
            return name
        pairs = (
            f"{inspected(expression, self._style)}={inspected(value, self._style)}"
            for expression, value in told.values
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


_PRINTED = (Happened.ENTERED, Happened.COLLECTED)
"""What tells of a stack that lines will come of it."""


def _number(stack: CallStack) -> str:
    """``1234``; of the second stack seen of a thread, a fiber's, ``1234.2``."""
    return f"{stack.tid}.{stack.fiber}" if stack.fiber > 1 else str(stack.tid)


_EVENTS = {
    Happened.RETURNED: "call",
    Happened.ENDED: "unfinished",
    Happened.LOST: "lost",
    Happened.COLLECTED: "gc",
}


def call_document(told: Told, names: Mapping[Thread, str]) -> Document | None:
    """A line of ``calls --json``, None for what is told by another line."""
    event = told.event
    name = _EVENTS.get(event.what)
    if name is None or (name == "call" and event.start is None):
        return None
    found: Document = {
        "schema": "rbtrace-py/calls",
        "version": 1,
        "event": name,
        "time_ns": event.time if event.start is None else event.start,
        "pid": told.pid,
        "tid": event.stack.tid,
        "stack": event.stack.number,
        "fiber": event.stack.fiber,
        "thread": names.get(told.thread) or None,
        "depth": event.depth,
    }
    if name == "lost":
        return {**found, "count": event.count}
    duration = None if name == "unfinished" else event.duration
    found["duration_ns"] = duration
    if name == "gc":
        return found
    return {
        **found,
        "cpu_ns": event.cpu_ns,
        "method": told.method.full_name,
        "is_c": told.method.kind is MethodKind.C,
        "path": told.method.path,
        "line": told.method.line,
        "values": dict(told.values) or None,
    }


def calls_end_document(
    count: int, counters: Mapping[str, int], stays: list[str]
) -> Document:
    """The last line of ``calls --json``."""
    return {
        "schema": "rbtrace-py/calls-end",
        "version": 1,
        "count": count,
        "counters": dict(counters),
        "lost": lost(counters),
        "stays": list(stays),
    }
