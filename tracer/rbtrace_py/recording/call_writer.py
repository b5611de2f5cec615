"""Writer of recordings of calls: the records of the rings, unchanged.

No code runs per event. A method is a stack of one frame. The scheduler's switches are
in separate blocks, before the records of the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.callfold import frame_of
from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.calls import CalledMethod, MethodKind, RingStep
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import GC_FRAME, RubyThread, Stack
from rbtrace_py.model.switches import Switch
from rbtrace_py.recording.blocks import BlockType, block, pack_columns
from rbtrace_py.recording.call_blocks import (
    ProcessNews,
    encode_methods,
    encode_process,
    encode_records,
)
from rbtrace_py.recording.sample_recording import FLUSH_SAMPLES, Path_, RecordingWriter

SWITCH_COLUMNS = "qIBBI"
"""Time since the last switch, thread, kind, state, and CPU or number of lost ones."""
MOST_WAITING = 4 << 20
"""Bytes of waiting records that cause a flush."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Records and names of a process since the previous step.

    Attributes:
        process: The process.
        step: The records.
        methods: New methods, numbered after the previous ones.
        tids: Kernel threads whose calls are in the step.
        calls: Number of calls that returned.
        lost: Number of events lost so far; 0 if not checked.
        clock: As in ``ProcessNews``.
        until: As in ``ProcessNews``.
        ended: As in ``ProcessNews``.
    """

    process: HookedProcess
    step: RingStep | None = None
    methods: Sequence[CalledMethod] = ()
    tids: frozenset[int] = frozenset()
    calls: int = 0
    lost: int = 0
    clock: tuple[int, int] | None = None
    until: int | None = None
    ended: bool = False


class CallsWriter(RecordingWriter):
    """Writes steps to a file about once per second; closing writes the rest.

    Args:
        path: The file.
        meta: Description of the recording.
        names: Names of threads; the caller may add names.
        switches: Returns the switches since its last call.
        ask: Called for a thread without a name, to add the name if possible.

    Attributes:
        most_waiting: Bytes of waiting records that cause a flush.

    Raises:
        BadRecording: As for ``RecordingWriter``.
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        path: Path_,
        meta: Meta,
        names: Mapping[Thread, str],
        switches: Callable[[], Iterable[Switch]] = tuple,
        ask: Callable[[Thread], None] = lambda thread: None,
    ) -> None:
        self.most_waiting = MOST_WAITING
        self._names = names
        self._take = switches
        self._ask = ask
        self._switches: list[Switch] = []
        self._processes: dict[HookedProcess, int] = {}
        self._named: dict[HookedProcess, int] = {}
        self._lost: dict[HookedProcess, int] = {}
        self._natives: dict[Thread, tuple[str, int]] = {}
        self._methods: list[tuple[int, int, int]] = []
        self._waiting: list[bytes] = []
        super().__init__(path, meta, Statistics("ns", counted="calls"))

    def tell(self, step: RecordedStep, time_ns: int) -> None:
        """Add a step; it is written with the first step after a second at the latest.

        Args:
            step: The step.
            time_ns: Current CLOCK_REALTIME.
        """
        process = step.process
        number = self._process(process)
        for tid in step.tids:
            self._name((process.pid, tid))
        for method in step.methods:
            self._method(process, number, method)
        if step.step is not None:
            records = encode_records(number, step.step, process.record_size)
            self._waiting.append(records)
        if step.clock or step.until is not None or step.ended:
            news = ProcessNews(number, None, step.clock, step.until, step.ended)
            self._waiting.append(encode_process(news))
        if step.lost:
            self._lost[process] = step.lost
            self.statistics.failed = sum(self._lost.values())
        self.statistics.ended_ns = max(self.statistics.ended_ns, time_ns)
        if sum(map(len, self._waiting)) >= self.most_waiting:
            self._flush_at = 0
        self.flush_if_due(time_ns)

    def take_switches(self) -> None:
        """Take the switches so far; call this often, because their buffer is small."""
        self._switches += self._take()

    def flush(self) -> None:
        # Take all switches up to the last record, so that they can precede it.
        self.take_switches()
        switches, self._switches = self._switches, []
        for at in range(0, len(switches), FLUSH_SAMPLES):
            payload = self._pack_switches(switches[at : at + FLUSH_SAMPLES])
            written = block(BlockType.SWITCHES, payload)
            self.write([*self._tables.blocks(), written])
        self._write_records()
        super().flush()

    def _write_records(self) -> None:
        waiting, self._waiting = self._waiting, []
        methods, self._methods = self._methods, []
        if methods:
            waiting = [*self._tables.blocks(), *waiting, encode_methods(methods)]
        self.write(waiting)

    def _pack_switches(self, switches: list[Switch]) -> bytes:
        rows = []
        before = 0
        for switch in switches:
            number = self._name((switch.pid, switch.tid))
            state = ord(switch.state or "\0")
            step = switch.time - before
            rows.append((step, number, switch.what, state, switch.value))
            before = switch.time
        return pack_columns(SWITCH_COLUMNS, list(zip(*rows, strict=True)))

    def _begin_section(self) -> None:
        self._natives.clear()
        super()._begin_section()

    def _process(self, process: HookedProcess) -> int:
        """Return a process's number in the file."""
        number = self._processes.get(process)
        if number is None:
            number = self._processes[process] = len(self._processes)
            self._waiting.append(encode_process(ProcessNews(number, process)))
        return number

    def _method(
        self, process: HookedProcess, number: int, method: CalledMethod
    ) -> None:
        frame = GC_FRAME if method.kind is MethodKind.GC else frame_of(method)
        index = self._named.get(process, 0)
        self._named[process] = index + 1
        self._methods.append((number, index, self._number(Stack((frame,)))))

    def _name(self, native: Thread) -> int:
        """Return the number of a kernel thread; its name may change or come later."""
        known = self._natives.get(native)
        if known is None and native not in self._names:
            self._ask(native)
        name = self._names.get(native, "")
        if known is None or known[0] != name:
            pid, tid = native
            thread = RubyThread(pid, tid or None, 0, name)
            known = self._natives[native] = (name, self._tables.thread(thread))
        return known[1]
