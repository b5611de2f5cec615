"""Writes recordings of calls as versions up to 0.2 did: events in blocks of CALLS.

They can still be read, so tests still need them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from rbtrace_py.aggregate.blocks import BlockType, block, pack_columns
from rbtrace_py.aggregate.callfold import frame_of
from rbtrace_py.aggregate.calls import (
    CallEventKind,
    CallStack,
    ReportedCall,
    Thread,
    Values,
)
from rbtrace_py.aggregate.callscan import CALL_COLUMNS
from rbtrace_py.aggregate.callvalues import COLUMNS
from rbtrace_py.aggregate.callwriter import CallsWriter
from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.aggregate.recording import FLUSH_SAMPLES, Path_
from rbtrace_py.aggregate.switches import Switch
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.stacks import GC_FRAME, RubyThread, Stack

_NO_METHOD = (CallEventKind.LOST,)
_MOST_STACKS = 1 << 16
_FULL = 1 << 22
"""Bytes of a block's, before it is too large."""


class Packer:
    """Gathers those of a block."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._texts: list[bytes] = []
        self._size = 0

    def add(self, row: int, values: Values) -> None:
        text = json.dumps(values).encode()
        self._rows.append(row)
        self._texts.append(text)
        self._size += len(text)

    @property
    def is_full(self) -> bool:
        return self._size >= _FULL

    def take(self) -> bytes:
        """Return the values behind the table, perhaps none, and begin anew."""
        rows, texts = self._rows, self._texts
        self._rows, self._texts, self._size = [], [], 0
        if not rows:
            return b""
        return pack_columns(COLUMNS, [rows, map(len, texts)]) + b"".join(texts)


class OldCallsWriter(CallsWriter):
    """Writes events to a file, a second's worth at a time; closing writes the rest.

    Raises as RecordingWriter.
    """

    def __init__(
        self,
        path: Path_,
        meta: Meta,
        names: Mapping[Thread, str],
        switches: Callable[[], Iterable[Switch]] = tuple,
        ask: Callable[[Thread], None] = lambda thread: None,
    ) -> None:
        self._calls: list[tuple[int, ...]] = []
        self._values = Packer()
        self._threads: dict[CallStack, int] = {}
        self._numbers: dict[int, tuple[CalledMethod, int]] = {}
        super().__init__(path, meta, names, switches, ask)

    def tell_call(self, reported: ReportedCall) -> None:
        """Write an event, at the latest with the first one a second later."""
        event = reported.event
        method = 0
        if event.what not in _NO_METHOD:
            method = self._method_number(reported.method)
        value = event.duration if event.what is not CallEventKind.LOST else event.count
        if reported.values and event.what is CallEventKind.ENTERED:
            self._values.add(len(self._calls), reported.values)
        self._calls.append(
            (
                event.time,
                self._thread(reported),
                event.stack.number,
                method,
                event.what,
                event.depth,
                0 if value is None else value + 1,
            )
        )
        if event.what is CallEventKind.LOST:
            self.statistics.failed += event.count
        self.statistics.ended_ns = max(self.statistics.ended_ns, event.time)
        if len(self._calls) >= FLUSH_SAMPLES or self._values.is_full:
            self._flush_at = 0
        self.flush_if_due(event.time)

    def _write_records(self) -> None:
        if self._calls:
            rows, self._calls = self._calls, []
            times, *others = zip(*rows, strict=True)
            steps = [b - a for a, b in zip((0, *times), times, strict=False)]
            payload = pack_columns(CALL_COLUMNS, [steps, *others])
            payload += self._values.take()
            self.write([*self._tables.blocks(), block(BlockType.CALLS, payload)])

    def _begin_section(self) -> None:
        self._threads.clear()
        self._numbers.clear()
        super()._begin_section()

    def _method_number(self, method: CalledMethod) -> int:
        """Its number, remembered by what it is: there is one object a method."""
        known = self._numbers.get(id(method))
        if known is not None and known[0] is method:
            return known[1]
        frame = GC_FRAME if method.kind is MethodKind.GC else frame_of(method)
        number = self._number(Stack((frame,)))
        if len(self._numbers) >= _MOST_STACKS:
            self._numbers.clear()
        self._numbers[id(method)] = (method, number)
        return number

    def _thread(self, reported: ReportedCall) -> int:
        stack = reported.event.stack
        number = self._threads.get(stack)
        if number is None:
            if len(self._threads) >= _MOST_STACKS:
                self._threads.clear()
            if reported.thread not in self._names:
                self._ask(reported.thread)
            name = self._names.get(reported.thread, "")
            thread = RubyThread(reported.pid, stack.tid or None, stack.thread, name)
            number = self._threads[stack] = self._tables.thread(thread)
        return number
