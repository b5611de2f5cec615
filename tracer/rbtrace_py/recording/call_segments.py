"""Flight recorder: a folder of recordings of calls, the oldest of which are deleted.

Each segment is a complete recording. It begins with all that is known about processes,
methods, and the stack of each stream. It names a thread when the thread makes calls.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.calls import KIND_AT, CalledMethod, CallKind, RingStep
from rbtrace_py.recording.call_writer import (
    MOST_WAITING,
    CallsWriter,
    RecordedStep,
)
from rbtrace_py.recording.sample_recording import EXTENSION, is_full

_NAME = re.compile(r"\d{8}T\d{6}-\d{6}\.rbrec")
_MOST_NUMBER = 900_000
"""Number of a segment after which numbers restart, with the next second."""
_PARTS = 16
"""A segment holds one part in ``_PARTS`` of the time and size to keep."""
_LONGEST = 2
"""Factor by which an open call prolongs its segment before it is cut."""
_RETURNS = (CallKind.RETURN, CallKind.C_RETURN)
_NESTING = (CallKind.ENTRY, CallKind.C_ENTRY, *_RETURNS, CallKind.STACK)
_BESIDE = bytes(set(range(256)).difference(_NESTING))
"""Kinds of records that do not affect which calls are open."""
_PLACES = (CallKind.PLACE, CallKind.THREAD)
_STACK_RECORDS = 3


def segments_in(folder: Path) -> list[Path]:
    """Return the recordings in a folder, oldest first."""
    with suppress(FileNotFoundError):
        found = (each for each in folder.iterdir() if _NAME.fullmatch(each.name))
        return sorted(each for each in found if each.is_file())
    return []


@dataclass(eq=False)
class _Known:
    """State of a process to write at the start of a new segment.

    Attributes:
        methods: Methods so far.
        clock: Last reading of its clock.
        stacks: For each stream, the records that identify its stack.
        open: Streams with an open call.
        lost: Number of lost events so far.
        lost_before: Number of events lost before this segment.
    """

    methods: list[CalledMethod] = field(default_factory=list)
    clock: tuple[int, int] | None = None
    stacks: dict[int, bytes] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    lost: int = 0
    lost_before: int = 0


class SegmentsWriter:
    """Writes steps like ``CallsWriter``, to successive files of a folder.

    Args:
        folder: The folder; it is created if it does not exist.
        make: Makes the writer of a segment.
        keep_ns: Time in ns for which a segment is kept after its end.
        most: Maximum bytes of all segments.
        time_ns: Current CLOCK_REALTIME.
        on_full: Called the first time that a full disk makes the writer delete the
            oldest segment.

    Attributes:
        deleted: Number of calls that were deleted because the disk was full. A
            segment's statistics count the calls deleted while it was written.

    Raises:
        BadRecording: Another process writes into the folder.
        OSError: A file cannot be written.
    """

    deleted = 0

    def __init__(
        self,
        folder: Path,
        make: Callable[[Path], CallsWriter],
        keep_ns: int,
        most: int,
        time_ns: int,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._make = make
        self._keep_ns = max(1, keep_ns)
        self._most = max(1, most)
        self._known: dict[HookedProcess, _Known] = {}
        self._looked = 0
        self._on_full = on_full
        self._was_full = False
        self._statistics = Statistics()
        self._calls: Counter[Path] = Counter()
        self._noted: Counter[Path] = Counter()
        folder.mkdir(exist_ok=True)
        self._lock = _locked(folder)
        try:
            self._begin(time_ns)
        except BaseException:
            os.close(self._lock)
            raise

    def tell(self, step: RecordedStep, time_ns: int) -> None:
        """Write a step, into a new segment if the current one has reached its limit."""
        if self._is_over(time_ns):
            self._writer.close()
            self._begin(time_ns)
        known = self._known.setdefault(step.process, _Known())
        self._learn(known, step)
        lost = max(0, step.lost - known.lost_before)
        self._writer.tell(replace(step, lost=lost), time_ns)
        self._calls[self._path] += step.calls
        self._is_empty = False
        if step.ended:
            del self._known[step.process]

    def take_switches(self) -> None:
        self._writer.take_switches()

    def flush_if_due(self, time_ns: int) -> None:
        """Flush like ``CallsWriter``, and delete segments beyond the limits."""
        self._writer.flush_if_due(time_ns)
        if not self._looked <= time_ns < self._looked + 10**9:
            self._looked = time_ns
            self._delete(time_ns)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _begin(self, time_ns: int) -> None:
        """Open a segment, and write all that is known at its start."""
        self._path = _next_path(self._folder, time_ns)
        self._writer = self._made()
        self._statistics = self._writer.statistics
        self._statistics.deleted = self._noted[self._path]
        self._writer.make_room = self._make_room
        self._writer.most_waiting = min(MOST_WAITING, self._most // _PARTS)
        self._began, self._is_empty = time_ns, True
        for process, known in self._known.items():
            known.lost_before = known.lost
            told = RingStep(0, list(known.stacks.items()))
            methods = tuple(known.methods)
            step = RecordedStep(process, told, methods, clock=known.clock)
            self._writer.tell(step, time_ns)
        self._delete(time_ns)

    def _made(self) -> CallsWriter:
        while True:
            try:
                return self._make(self._path)
            except OSError as error:
                if not is_full(error) or not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Delete the oldest segment but not the current one; return whether it did."""
        for oldest in segments_in(self._folder):
            if oldest != self._path:
                oldest.unlink(missing_ok=True)
                self._count_deleted(oldest)
                if not self._was_full:
                    self._was_full = True
                    self._on_full()
                return True
        return False

    def _count_deleted(self, path: Path) -> None:
        """Add a deleted segment's calls and its count of deleted calls to this one."""
        calls = self._calls.pop(path, 0)
        self.deleted += calls
        self._noted[self._path] += calls + self._noted.pop(path, 0)
        self._statistics.deleted = self._noted[self._path]

    def _is_over(self, time_ns: int) -> bool:
        if self._is_empty:
            return False
        parts = _PARTS * abs(time_ns - self._began) / self._keep_ns
        if parts < 1:
            parts = _PARTS * self._path.stat().st_size / self._most
        is_open = any(known.open for known in self._known.values())
        return parts >= (_LONGEST if is_open else 1)

    def _learn(self, known: _Known, step: RecordedStep) -> None:
        known.methods += step.methods
        known.clock = step.clock or known.clock
        known.lost = max(known.lost, step.lost)
        size = step.process.record_size
        for stream, data in step.step.parts if step.step else ():
            stack = known.stacks.get(stream, b"") + _beginning(data, size)
            if (at := data[KIND_AT::size].rfind(CallKind.STACK)) >= 0:
                stack = data[at * size : (at + _STACK_RECORDS) * size]
            known.stacks[stream] = stack[: _STACK_RECORDS * size]
            is_open = _is_open(data, size)
            if is_open:
                known.open.add(stream)
            elif is_open is not None:
                known.open.discard(stream)

    def _delete(self, time_ns: int) -> None:
        """Delete segments beyond the limits, but for their size never the last two."""
        left = self._most
        for age, path in enumerate(reversed(segments_in(self._folder))):
            with suppress(FileNotFoundError):
                found = path.stat()
                left -= found.st_size
                is_old = found.st_mtime_ns < time_ns - self._keep_ns
                if path != self._path and (is_old or (left < 0 and age > 1)):
                    path.unlink()
                    self._calls.pop(path, None)
                    self._noted.pop(path, None)


def _next_path(folder: Path, time_ns: int) -> Path:
    """Return a name that sorts after all others, even if the clock was set back."""
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_ns // 10**9))
    number = 0
    for newest in segments_in(folder)[-1:]:
        last, numbered = newest.name.removesuffix(EXTENSION).split("-")
        number = int(numbered)
        if last >= began:
            began = last
        elif number >= _MOST_NUMBER:
            number = 0
    return folder / f"{began}-{number + 1:06}{EXTENSION}"


def _beginning(data: bytes, size: int) -> bytes:
    """Return the rest of a STACK, PLACE, THREAD triple that the previous step cut."""
    kinds = data[KIND_AT::size][: _STACK_RECORDS - 1]
    return data[: (len(kinds) - len(kinds.lstrip(bytes(_PLACES)))) * size]


def _is_open(data: bytes, size: int) -> bool | None:
    """Return whether a call is open after these records; None if unknown."""
    at = len(data[KIND_AT::size].rstrip(_BESIDE)) - 1
    if at < 0:
        return None
    record = data[at * size : (at + 1) * size]
    if record[KIND_AT] == CallKind.STACK:
        return False
    return record[KIND_AT] not in _RETURNS or any(record[12:14])


def is_written(folder: Path) -> bool:
    """Return whether a recorder still writes into a folder: it holds its lock."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _locked(folder: Path) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise BadRecording(f"another rbtrace-py is writing into {folder}") from None
    return fd
