"""Writes recordings of calls as versions up to 0.2 did: events in blocks of CALLS.

They can still be read, so tests still need them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from rbtrace_py.aggregate.blocks import BlockType, block, pack_columns
from rbtrace_py.aggregate.callfold import GARBAGE, frame_of
from rbtrace_py.aggregate.calls import (
    CallEventKind,
    CallStack,
    ReportedCall,
    Thread,
    Values,
)
from rbtrace_py.aggregate.callscan import CALL_COLUMNS
from rbtrace_py.aggregate.callvalues import COLUMNS
from rbtrace_py.aggregate.callwriter import SWITCH_COLUMNS
from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.aggregate.recording import FLUSH_SAMPLES, Path_, RecordingWriter
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.switches import Switch
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.stacks import RubyThread, Stack

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


class OldCallsWriter(RecordingWriter):
    """Writes events to a file, a second's worth at a time; closing writes the rest.

    names: of threads; more may come
    ask: has names of threads added that are not in it, if it can
    switches: gives those that have come since it was last called, until now

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
        self._names = names
        self._take = switches
        self._ask = ask
        self._switches: list[Switch] = []
        self._threads: dict[CallStack, int] = {}
        self._natives: dict[tuple[Thread, str], int] = {}
        self._methods: dict[int, tuple[CalledMethod, int]] = {}
        super().__init__(path, meta, Statistics("ns", counted="calls"))

    def tell(self, reported: ReportedCall) -> None:
        """Write an event, at the latest with the first one a second later."""
        event = reported.event
        method = 0
        if event.what not in _NO_METHOD:
            method = self._method(reported.method)
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

    def take_switches(self) -> None:
        """To be called as time goes by, for what keeps them has not room for all."""
        self._switches += self._take()

    def flush(self) -> None:
        # What had happened when the last of the calls did: so it can stand before them.
        self.take_switches()
        switches, self._switches = self._switches, []
        for at in range(0, len(switches), FLUSH_SAMPLES):
            payload = self._pack_switches(switches[at : at + FLUSH_SAMPLES])
            written = block(BlockType.SWITCHES, payload)
            self.write([*self._tables.blocks(), written])
        if self._calls:
            rows, self._calls = self._calls, []
            times, *others = zip(*rows, strict=True)
            steps = [b - a for a, b in zip((0, *times), times, strict=False)]
            payload = pack_columns(CALL_COLUMNS, [steps, *others])
            payload += self._values.take()
            self.write([*self._tables.blocks(), block(BlockType.CALLS, payload)])
        super().flush()

    def _pack_switches(self, switches: list[Switch]) -> bytes:
        rows = []
        before = 0
        for switch in switches:
            number = self._switched((switch.pid, switch.tid))
            state = ord(switch.state or "\0")
            step = switch.time - before
            rows.append((step, number, switch.what, state, switch.value))
            before = switch.time
        return pack_columns(SWITCH_COLUMNS, list(zip(*rows, strict=True)))

    def _begin_section(self) -> None:
        self._threads.clear()
        self._natives.clear()
        self._methods.clear()
        super()._begin_section()

    def _method(self, method: CalledMethod) -> int:
        """Its number, remembered by what it is: there is one object a method."""
        known = self._methods.get(id(method))
        if known is not None and known[0] is method:
            return known[1]
        frame = GARBAGE if method.kind is MethodKind.GC else frame_of(method)
        number = self._number(Stack((frame,)))
        if len(self._methods) >= _MOST_STACKS:
            self._methods.clear()
        self._methods[id(method)] = (method, number)
        return number

    def _switched(self, native: Thread) -> int:
        """The number of a kernel thread, and of its name, which may come later."""
        name = self._names.get(native, "")
        number = self._natives.get((native, name))
        if number is None:
            if len(self._natives) >= _MOST_STACKS:
                self._natives.clear()
            pid, tid = native
            thread = RubyThread(pid, tid or None, 0, name)
            number = self._natives[native, name] = self._tables.thread(thread)
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
