"""Recordings of calls: every entry and return, in a file of blocks (``recording``).

They share the tables of recordings of samples. A method is a stack of one frame. When
threads were on CPUs stands in blocks of its own, before the calls of the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from rbtrace_py.aggregate import callvalues
from rbtrace_py.aggregate.blocks import (
    FILE_HEADER_SIZE,
    BlockType,
    Damaged,
    block,
    blocks,
    check_file_header,
    pack_columns,
    unpack_columns,
)
from rbtrace_py.aggregate.callfold import GARBAGE, frame_of
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallStack,
    ReportedCall,
    Thread,
    Values,
)
from rbtrace_py.aggregate.callthreads import CALL_COLUMNS, call_stacks, thread_names
from rbtrace_py.aggregate.meta import Meta, decode_losses
from rbtrace_py.aggregate.recording import (
    FLUSH_SAMPLES,
    Path_,
    Recording,
    RecordingWriter,
)
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.switches import Switch, SwitchKind
from rbtrace_py.aggregate.tables import TablesReader
from rbtrace_py.model.calls import UNKNOWN_METHOD, CalledMethod, MethodKind
from rbtrace_py.model.stacks import FrameKind, RubyThread, Stack

MODE = "calls"
"""Of META of such a recording."""
SWITCH_COLUMNS = "qIBBI"
"""Time since the last one, thread, what, state, and the CPU or how many were lost."""
_NO_METHOD = (CallEventKind.LOST,)
_KNOWN = {int(what): what for what in CallEventKind}
_TURNS = {int(what): what for what in SwitchKind}
_MOST_STACKS = 1 << 16
_MOST_TIME = (1 << 62) - 1


class CallsWriter(RecordingWriter):
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
        self._values = callvalues.Packer()
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


class CallsRecording:
    """A recording of calls to read: iterate for its events, as often as wanted.

    ``timeline`` is the same with what the scheduler did among them.

    meta: of the first section; names: of all its threads
    statistics: how many calls ended, and how many events were lost (``failed``)
    damage, is_complete: as Recording has them

    BadRecording if it is none.
    """

    def __init__(self, path: Path_) -> None:
        self._path = Path(path)
        self.meta = Recording(path).meta
        self.names = thread_names(self._path)
        self._forget()

    def _forget(self) -> None:
        started = self.meta.started_ns
        self.statistics = Statistics("ns", started_ns=started, counted="calls")
        self.damage = ""
        self.is_complete = False

    def __iter__(self) -> Iterator[ReportedCall]:
        for each in self._read(frozenset({BlockType.CALLS})):
            assert isinstance(each, ReportedCall)
            yield each

    def timeline(self) -> Iterator[ReportedCall | Switch]:
        """Switches stand before the calls of the same time, up to a second early."""
        return self._read(frozenset({BlockType.CALLS, BlockType.SWITCHES}))

    def stacks(self) -> Iterator[tuple[RubyThread, int]]:
        """Threads, and numbers of Ruby's stacks, with calls; some several times."""
        return call_stacks(self._path)

    def has_switches(self) -> bool:
        """Is it told when threads were on CPUs?"""
        return next(self._read(frozenset({BlockType.SWITCHES})), None) is not None

    def _read(self, wanted: frozenset[int]) -> Iterator[ReportedCall | Switch]:
        self._forget()
        with self._path.open("rb") as file:
            check_file_header(file.read(FILE_HEADER_SIZE), str(self._path))
            reader = _Section(self)
            try:
                for kind, payload in blocks(file):
                    self.is_complete = kind == BlockType.END
                    if kind == BlockType.META:
                        reader = _Section(self)
                    elif kind == BlockType.CALLS and kind in wanted:
                        yield from reader.events(payload)
                    elif kind == BlockType.SWITCHES and kind in wanted:
                        yield from reader.switches(payload)
                    elif kind == BlockType.LOSSES:
                        reader.lost(decode_losses(payload))
                    else:
                        reader.tables.add(kind, payload)
            except Damaged as damaged:
                self.damage = str(damaged)
                self.is_complete = False


class _Section:
    def __init__(self, recording: CallsRecording) -> None:
        self.tables = TablesReader()
        self._recording = recording
        self._before = recording.statistics.failed
        self._stacks: dict[tuple[int, int], CallStack] = {}
        self._fibers: dict[int, int] = {}
        self._methods: dict[int, CalledMethod] = {}
        self._given: dict[tuple[CallStack, int], Values] = {}

    def lost(self, found: Statistics) -> None:
        own = self._recording.statistics
        own.failed = self._before + found.failed
        own.ended_ns = max(own.ended_ns, found.ended_ns)

    def events(self, payload: bytes) -> Iterator[ReportedCall]:
        columns, rest = unpack_columns(CALL_COLUMNS, payload)
        values = callvalues.unpack(rest)
        steps, *others = columns
        times = (min(max(time, 0), _MOST_TIME) for time in accumulate(steps))
        for row, (time, thread, number, method, kind, depth, value) in enumerate(
            zip(times, *others, strict=True)
        ):
            what = _KNOWN.get(kind)
            if what is None:
                continue
            event = CallEvent(what, self._stack(thread, number), time, depth=depth)
            if what is CallEventKind.LOST:
                event.count = max(value - 1, 0)
            elif value:
                event.start = max(time - (value - 1), 0)
            self._count(event)
            known = UNKNOWN_METHOD if not method else self._method(method)
            given: Values = ()
            if values or self._given:
                given = self._values(event, values.get(row, ()))
            yield ReportedCall(self.tables.thread(thread).pid, event, known, given)

    def _values(self, event: CallEvent, entered: Values) -> Values:
        """Those of the call as it was entered, also when it ends."""
        place = (event.stack, event.depth)
        if event.what is not CallEventKind.ENTERED:
            ends = event.what in (CallEventKind.RETURNED, CallEventKind.ENDED)
            return self._given.pop(place, ()) if ends else ()
        self._given.pop(place, None)
        if entered and len(self._given) < _MOST_STACKS:
            self._given[place] = entered
        return entered

    def switches(self, payload: bytes) -> Iterator[Switch]:
        columns, _ = unpack_columns(SWITCH_COLUMNS, payload)
        steps, *others = columns
        times = (min(max(time, 0), _MOST_TIME) for time in accumulate(steps))
        own = self._recording.statistics
        for time, number, kind, state, value in zip(times, *others, strict=True):
            what = _TURNS.get(kind)
            if what is None:
                continue
            thread = self.tables.thread(number)
            own.ended_ns = max(own.ended_ns, time)
            letter = chr(state) if state else ""
            yield Switch(thread.pid, thread.tid or 0, time, what, letter, value)

    def _count(self, event: CallEvent) -> None:
        own = self._recording.statistics
        own.ended_ns = max(own.ended_ns, event.time)
        if event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            own.samples += event.start is not None

    def _stack(self, thread: int, number: int) -> CallStack:
        found = self._stacks.get((thread, number))
        if found is None:
            known = self.tables.thread(thread)
            if len(self._stacks) >= _MOST_STACKS:
                self._stacks.clear()
                self._fibers.clear()
            fiber = self._fibers[thread] = self._fibers.get(thread, 0) + 1
            tid = known.tid or 0
            found = CallStack(number, tid, fiber, thread=known.address)
            self._stacks[thread, number] = found
        return found

    def _method(self, number: int) -> CalledMethod:
        found = self._methods.get(number)
        if found is None:
            stack = self.tables.stack(number)
            if len(stack.frames) != 1:
                raise Damaged("a call of what is no method")
            (frame,) = stack.frames
            kind = _METHOD_KINDS.get(frame.kind, MethodKind.RUBY)
            found = CalledMethod(
                kind, None, False, frame.name, frame.path or None, frame.line
            )
            self._methods[number] = found
        return found


_METHOD_KINDS = {FrameKind.C: MethodKind.C, FrameKind.GC: MethodKind.GC}
