"""Reader of recordings of calls, which contain every entry and return."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rbtrace_py.aggregate.call_interpreter import CallInterpreter
from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    ReportedCall,
    Thread,
)
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.reportedcalls import ReportedCalls
from rbtrace_py.aggregate.sampling import Incomplete, Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.aggregate.switches import CpuTimes
from rbtrace_py.errors import BadRecording, NoSuchTarget
from rbtrace_py.model.stacks import RubyThread
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.recording.blocks import (
    BlockType,
    Damaged,
    unpack_columns,
)
from rbtrace_py.recording.call_blocks import (
    decode_process,
    decode_records,
    process_of,
)
from rbtrace_py.recording.call_scan import (
    CallsScan,
    ScannedProcess,
    call_stacks,
    check_version,
    scan,
    section_blocks,
)
from rbtrace_py.recording.call_segments import is_written, segments_in
from rbtrace_py.recording.call_writer import SWITCH_COLUMNS
from rbtrace_py.recording.lookup_tables import TablesReader
from rbtrace_py.recording.metadata import decode_losses
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import Path_, Recorded, Recording

_TURNS = {int(what): what for what in SwitchKind}
_CALLS = frozenset({BlockType.RECORDS, BlockType.PROCESS})
_SWITCHES = frozenset({BlockType.SWITCHES})
_MOST_TIME = (1 << 62) - 1


class _File(NamedTuple):
    """A file to read; for a folder's file, ``path`` is its descriptor in /proc."""

    path: Path
    recording: Recording
    name: str = ""


class CallsRecording:
    """A recording of calls; each iteration yields the events that match ``filters``.

    A folder is read as one recording, segment by segment (``call_segments``).

    Attributes:
        meta: Description of the first section.
        statistics: Number of calls that ended, and of lost events (``failed``).
            ``incomplete`` is set at the end, for the first incomplete file.
        is_complete: As in ``Recording``, for the last file.
        is_written: As in ``Recording``, for the last file; also True while a recorder
            writes into the folder.

    Raises:
        BadRecording: It is not a recording, or rbtrace-py 0.2 made it.
    """

    def __init__(self, path: Path_, filters: Filters | None = None) -> None:
        self._name = str(path)
        self._filters = filters or Filters()
        self._incomplete: Incomplete | None = None
        self._files = list(self._opened(Path(path)))
        if not self._files:
            raise BadRecording(f"{path} has no recordings of calls")
        for file in self._files:
            check_version(file.path, file.name or str(path))
        self.meta = self._files[0].recording.meta
        self.is_written = self._files[-1].recording.is_written or (
            # The recorder may have begun another file meanwhile.
            os.path.isdir(path) and is_written(Path(path))
        )
        self._forget()

    def _opened(self, path: Path) -> Iterator[_File]:
        """Yield the files to read.

        Skip files of a folder that a full disk or a crash left without a beginning.
        """
        if not path.is_dir():
            yield _File(path, Recording(path))
            return
        for each in self._held(path):
            held = Path(f"/proc/self/fd/{each.fileno()}")
            name = Path(each.name).name
            try:
                yield _File(held, Recording(held), name)
            except BadRecording:
                if held.stat().st_size:
                    damage = f"{name}: not a recording"
                    self._incomplete = Incomplete("damaged", 0, damage)

    def _held(self, folder: Path) -> Sequence[BinaryIO]:
        """Open all segments, so that a recorder may delete them during the reading."""
        while True:
            with ExitStack() as stack, suppress(FileNotFoundError):
                opened = (each.open("rb") for each in segments_in(folder))
                files = [stack.enter_context(file) for file in opened]
                weakref.finalize(self, stack.pop_all().close)
                return files

    @cached_property
    def _scans(self) -> list[tuple[_File, CallsScan]]:
        return [(file, scan(file.path)) for file in self._files]

    @cached_property
    def names(self) -> dict[Thread, str]:
        """The last known name of each thread."""
        names: dict[Thread, str] = {}
        for _, found in self._scans:
            names |= found.names
        return names

    def _forget(self) -> None:
        started = self.meta.started_ns
        self.statistics = Statistics("ns", started_ns=started, counted="calls")
        self.statistics.incomplete = self._incomplete
        self.is_complete = False

    def __iter__(self) -> Iterator[ReportedCall]:
        for each in self.timeline(has_switches=False):
            assert isinstance(each, ReportedCall)
            yield each

    def timeline(self, has_switches: bool = True) -> Iterator[ReportedCall | Switch]:
        """Yield calls in order and, unless ``has_switches`` is False, switches.

        Switches are before the calls of the same time, up to a second early.
        """
        events = self._read(_CALLS | _SWITCHES if has_switches else _CALLS)
        return self._filtered(events) if self._filters.are_set else events

    def read(self) -> Recorded:
        """Read all calls that match the filters, and fold them."""
        profile = self.profile(has_switches=False)
        return Recorded(profile, tuple(self.notes()), self.missing())

    def profile(self, has_switches: bool) -> Profile:
        """Fold the calls that match the filters into stacks.

        Args:
            has_switches: Read the CPU times of threads as well.
        """
        fold, times = CallFold(), CpuTimes()
        for each in self.timeline(has_switches):
            if isinstance(each, Switch):
                times.feed(each)
            else:
                fold.add(each)
        calls, counts = StackCounts(), StackCounts(self.statistics.copy())
        fold.take(counts, self.names, int, calls)
        times.end(self.statistics.ended_ns)
        cpu = times if times.threads else None
        return Profile(counts, self.meta, cpu=cpu, names=self.names, calls=calls)

    def notes(self) -> Iterator[str]:
        """Yield notes for the user, one line each, after everything has been read."""
        if self.is_written:
            yield f"{self._name} is still being written"
        if lost := self.statistics.failed:
            yield f"{lost:,} events were lost during recording"

    def missing(self) -> NoSuchTarget | None:
        """Return the error that no thread matches the filters; None if one does."""
        if not self._filters.are_set:
            return None
        threads = (
            (t.pid, self._thread_name((t.pid, t.tid or 0))) for t, _ in self.stacks()
        )
        return self._filters.missing(self._name, threads)

    def stacks(self) -> Iterator[tuple[RubyThread, int]]:
        """Yield thread and number of each Ruby stack with calls; may repeat them."""
        for file, found in self._scans:
            yield from call_stacks(file.path, found)

    def has_several_stacks(self) -> bool:
        """Return whether calls of more than one Ruby stack match the filters."""
        wants = self._wants()
        first: tuple[int, int] | None = None
        for thread, number in self.stacks():
            if wants((thread.pid, thread.tid or 0)):
                if first not in (None, (thread.pid, number)):
                    return True
                first = (thread.pid, number)
        return False

    def has_switches(self) -> bool:
        """Return whether it contains context switches."""
        return next(self._read(_SWITCHES), None) is not None

    def _filtered(
        self, events: Iterator[ReportedCall | Switch]
    ) -> Iterator[ReportedCall | Switch]:
        wants, wants_pid = self._wants(), self._filters.wants_pid
        for each in events:
            if isinstance(each, ReportedCall):
                is_wanted = wants(each.thread)
            elif each.tid:
                is_wanted = wants((each.pid, each.tid))
            else:  # of all threads of a process, or of all processes
                is_wanted = not each.pid or wants_pid(each.pid)
            if is_wanted:
                yield each

    def _wants(self) -> Callable[[Thread], bool]:
        expression, wants_pid = self._filters.expression(), self._filters.wants_pid

        @cache  # expressions are slow
        def wants(thread: Thread) -> bool:
            name = self._thread_name(thread)
            return wants_pid(thread[0]) and expression.search(name) is not None

        return wants

    def _thread_name(self, thread: Thread) -> str:
        return self.names.get(thread, "")

    def _read(self, wanted: frozenset[int]) -> Iterator[ReportedCall | Switch]:
        self._forget()
        most = self.meta.most_calls
        for file, found in self._scans:
            for each in self._of(file, found, wanted):
                yield each
                if most and self.statistics.samples >= most:
                    self.is_complete = found.is_complete
                    return

    def _of(
        self, of: _File, found: CallsScan, wanted: frozenset[int]
    ) -> Iterator[ReportedCall | Switch]:
        raw = _Processes(found)
        damage = None
        self.is_complete = False
        try:
            yield from self._sections(of.path, found.end, wanted, raw)
        except Damaged as damaged:
            damage = damaged
            self.is_complete = False
        own = self.statistics
        if not self.is_complete and own.incomplete is None:
            own.incomplete = of.recording.incomplete(damage, own.ended_ns, of.name)
        for each in raw.finish() if wanted >= _CALLS else ():
            self._count(each.event)
            yield each

    def _sections(
        self, path: Path, end: int, wanted: frozenset[int], raw: _Processes
    ) -> Iterator[ReportedCall | Switch]:
        before = self.statistics.copy()
        for kind, payload, tables, at in section_blocks(path):
            # Blocks that were written after the scan may lack names.
            if at > end > 0:
                return
            self.is_complete = kind == BlockType.END
            if kind == BlockType.META:
                before = self.statistics.copy()
            elif kind == BlockType.LOSSES:
                self._add_losses(before, decode_losses(payload))
            elif kind in _CALLS & wanted:
                for each in raw.feed(kind, payload):
                    self._count(each.event)
                    yield each
            elif kind == BlockType.SWITCHES and kind in wanted:
                yield from self._switches(payload, tables)

    def _add_losses(self, before: Statistics, found: Statistics) -> None:
        """Add a section's losses so far to the losses before it."""
        own = self.statistics
        own.failed = before.failed + found.failed
        own.deleted = before.deleted + found.deleted
        own.ended_ns = max(own.ended_ns, found.ended_ns)

    def _switches(self, payload: bytes, tables: TablesReader) -> Iterator[Switch]:
        columns, _ = unpack_columns(SWITCH_COLUMNS, payload)
        steps, *others = columns
        times = (min(max(time, 0), _MOST_TIME) for time in accumulate(steps))
        own = self.statistics
        for time, number, kind, state, value in zip(times, *others, strict=True):
            what = _TURNS.get(kind)
            if what is None:
                continue
            thread = tables.thread(number)
            own.ended_ns = max(own.ended_ns, time)
            letter = chr(state) if state else ""
            yield Switch(thread.pid, thread.tid or 0, time, what, letter, value)

    def _count(self, event: CallEvent) -> None:
        """Count an event in the statistics."""
        own = self.statistics
        own.ended_ns = max(own.ended_ns, event.time)
        if event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            own.samples += event.start is not None


class _Processes:
    """Turns the records of all processes into events."""

    def __init__(self, found: CallsScan) -> None:
        self._found = found
        self._calls: dict[ScannedProcess, CallInterpreter[ReportedCall]] = {}

    def feed(self, kind: int, payload: bytes) -> Iterator[ReportedCall]:
        """Yield the events of a PROCESS or RECORDS block; raises Damaged."""
        if kind == BlockType.RECORDS:
            known = self._found.process(process_of(payload))
            step = decode_records(payload, known.process.record_size)
            calls = self._calls.get(known)
            if calls is None:
                sink = ReportedCalls(known.process, known.method)
                calls = CallInterpreter(known.process, sink, known.until)
                self._calls[known] = calls
            yield from calls.feed(step)
        elif (news := decode_process(payload)).ended:
            ended = self._calls.pop(self._found.process(news.number), None)
            yield from ended.finish() if ended else ()

    def finish(self) -> Iterator[ReportedCall]:
        """Yield the remaining events of all processes."""
        for calls in self._calls.values():
            yield from calls.finish()
