"""Writer and reader of recordings of samples.

A file is a header and blocks (``blocks``). A META block begins a section. Each flush
writes complete blocks at once: tables for the samples (``lookup_tables``), samples, and
losses. A file is readable up to its last complete block, even if the writer crashed.
docs/formats/recordings.md specifies the format.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Incomplete, Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.aggregate.stacktree import MAX_NODES
from rbtrace_py.errors import BadRecording, NoSuchTarget
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.model.stacks import (
    RUN_QUEUE,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)
from rbtrace_py.recording.blocks import (
    FILE_HEADER_SIZE,
    BlockType,
    CutOff,
    Damaged,
    block,
    blocks,
    check_file_header,
    file_header,
    pack_columns,
    unpack_columns,
)
from rbtrace_py.recording.lookup_tables import MAX_DEPTH, TablesReader, TablesWriter
from rbtrace_py.recording.metadata import (
    decode_losses,
    decode_meta,
    encode_losses,
    encode_meta,
)
from rbtrace_py.recording.recording_filters import Filters, thread_name

SAMPLE_COLUMNS = "qIIBBQQ"
"""Time since the last sample, thread, stack, state, flags, weight, fiber."""

FLUSH_NS = 1_000_000_000
FLUSH_SAMPLES = 1 << 16
_KNOWN_STACKS = 1 << 14

EXTENSION = ".rbrec"
"""Extension of recordings' default names."""

Path_ = str | os.PathLike[str]


class RecordingWriter(Closing):
    """Writes samples to a file about once per second.

    Args:
        path: The file. An existing file is replaced, or gets another section if
            ``append`` is True.
        meta: Description of the recording.
        statistics: Statistics of the sampler. Each flush writes the current
            ``rounds``, ``late``, ``failed``, and ``ended_ns``.
        append: Append to an existing file.
        max_nodes: Maximum number of nodes of a section's stack tree.

    Attributes:
        follows_cut: True if the existing file lacks its end.
        make_room: Called if the disk is full; returns whether to retry.

    Raises:
        BadRecording: Another process writes the file, or its mode or unit differs.
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        path: Path_,
        meta: Meta,
        statistics: Statistics | None = None,
        append: bool = False,
        max_nodes: int = MAX_NODES,
    ) -> None:
        self.statistics = statistics or Statistics(meta.unit, meta.rate)
        self.make_room: Callable[[], bool] = lambda: False
        self._meta = meta
        self._max_nodes = max_nodes
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._flush_at = 0
        self._losses = b""
        self._file, self.follows_cut = _open(path, meta, append)
        self._begin_section()

    def add(self, sample: Sample) -> None:
        """Add a sample; it is written with the first sample after a second at most."""
        time_ns, thread, state, stack, weight, flags, fiber = sample
        node = self._nodes.get(stack)
        if node is None:
            node = self._number(stack)
        number = self._tables.thread(thread)
        if len(stack.frames) > MAX_DEPTH:
            flags |= SampleFlags.TRUNCATED
        self._rows.append((time_ns, number, node, state, flags, weight, fiber))
        if len(self._rows) >= FLUSH_SAMPLES:
            self._flush_at = 0
        self.flush_if_due(time_ns)

    def flush_if_due(self, time_ns: int) -> None:
        """Flush if the last flush was a second ago; call this regularly.

        Args:
            time_ns: Current CLOCK_REALTIME, which may have been set back.
        """
        if not self._flush_at - FLUSH_NS <= time_ns < self._flush_at:
            self.flush()
            self._flush_at = time_ns + FLUSH_NS

    def flush(self) -> None:
        """Write everything in one call; a writer killed afterwards loses nothing."""
        written = self._tables.blocks()
        if self._rows:
            written.append(block(BlockType.SAMPLES, _pack_samples(self._rows)))
            self._rows = []
        losses = encode_losses(self.statistics, self._before)
        if losses != self._losses:
            self._losses = losses
            written.append(block(BlockType.LOSSES, losses))
        self._put(b"".join(written))
        if self._tables.is_full:
            self._begin_section()

    def write(self, blocks_: list[bytes]) -> None:
        """Write complete blocks in one call."""
        self._put(b"".join(blocks_))

    def close(self) -> None:
        """Write the rest and the END block."""
        if self._file.closed:
            return
        try:
            self.flush()
            while self._losses != encode_losses(self.statistics, self._before):
                self.flush()  # writing deleted old data, which the statistics count
            self._put(block(BlockType.END, b""))
        finally:
            self._file.close()

    def _put(self, data: bytes) -> None:
        """Write; on error close the file, because blocks after a cut are unreadable."""
        try:
            self._write_making_room(data)
        except OSError:
            self._file.close()
            raise

    def _write_making_room(self, data: bytes) -> None:
        at = self._file.tell() if self._file.seekable() else 0
        while True:
            try:
                return _write(self._file, data)
            except OSError as error:
                if not is_full(error) or not self.make_room():
                    raise
            # Remove the partial block.
            self._file.truncate(at)
            self._file.seek(at)

    def _begin_section(self) -> None:
        """Begin a section with empty tables; this keeps tables bounded."""
        self._tables = TablesWriter(self._max_nodes)
        self._nodes: dict[Stack, int] = {}
        self._before = self.statistics.copy()
        self._losses = b""
        self._put(block(BlockType.META, encode_meta(self._meta)))

    def _number(self, stack: Stack) -> int:
        node = self._tables.stack(stack)
        if node is None:
            self.flush()
            self._begin_section()
            node = self._tables.stack(stack) or 0
        if len(self._nodes) >= _KNOWN_STACKS:
            self._nodes.clear()
        self._nodes[stack] = node
        return node


def _open(path: Path_, meta: Meta, append: bool) -> tuple[io.FileIO, bool]:
    """Return the file, locked and positioned for the next section.

    The second value is True if the file's last section was cut off.
    """
    is_cut = False
    way = os.O_RDWR if append else os.O_WRONLY
    fd = os.open(path, way | os.O_CREAT | os.O_CLOEXEC, 0o644)
    file = io.FileIO(fd, "r+" if append else "w")
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            _lock(file, path)
            end, is_cut = _end(file, str(path), meta) if append else (0, False)
            file.truncate(end)
            file.seek(0, os.SEEK_END)
        if not append or not file.tell():
            _write(file, file_header())
    except BaseException:
        file.close()
        raise
    return file, is_cut


def _lock(file: io.FileIO, path: Path_) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRecording(f"another rbtrace-py is writing {path}") from None


def _end(file: io.FileIO, name: str, meta: Meta) -> tuple[int, bool]:
    """Return where the last complete block ends, and whether the file lacks its end."""
    if not os.fstat(file.fileno()).st_size:
        return 0, False
    buffered = io.BufferedReader(file)
    try:
        check_file_header(buffered.read(FILE_HEADER_SIZE), name)
        end, is_closed = FILE_HEADER_SIZE, False
        try:
            for kind, payload in blocks(buffered):
                if kind == BlockType.META:
                    _check_appendable(decode_meta(payload), meta, name)
                end, is_closed = buffered.tell(), kind == BlockType.END
        except CutOff:
            is_closed = False
        except Damaged as damaged:
            raise BadRecording(
                f"{name} is damaged ({damaged})", "Record to a new file"
            ) from damaged
        return end, not is_closed
    finally:
        buffered.detach()


def _check_appendable(before: Meta, meta: Meta, name: str) -> None:
    """Raise BadRecording unless the samples of both sections are weighted alike."""
    if before.unit != meta.unit or before.mode != meta.mode:
        raise BadRecording(
            f"{name} uses another unit or mode",
            "Record with the same --engine and --mode",
        )
    if before.weights != meta.weights:
        raise BadRecording(
            f"{name} was recorded by an older version, which weighed samples otherwise",
            "Record to a new file",
        )


def is_full(error: OSError) -> bool:
    """Return whether the disk is full or the user's quota is exceeded."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _write(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _pack_samples(rows: list[tuple[int, int, int, int, int, int, int]]) -> bytes:
    times, *others = zip(*rows, strict=True)
    steps = [after - before for before, after in zip((0, *times), times, strict=False)]
    return pack_columns(SAMPLE_COLUMNS, [steps, *others])


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording that was read.

    Attributes:
        profile: The counted samples or calls.
        notes: Notes for the user, one line each.
        missing: The error that no thread matches the filters; None if one does.
    """

    profile: Profile
    notes: tuple[str, ...] = ()
    missing: NoSuchTarget | None = None


_END = block(BlockType.END, b"")


def _is_written(file: BinaryIO) -> bool:
    """Return whether a recorder is still writing a file: it holds the file's lock."""
    try:
        file.seek(-len(_END), os.SEEK_END)
        is_closed = file.read() == _END
        file.seek(0)
        if not is_closed:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        file.seek(0)
    return False


class Recording:
    """A recording of samples; each iteration yields those that match ``filters``.

    A damaged or cut-off file is not an error: all blocks before the damage are read.

    Attributes:
        meta: Description of the first section.
        statistics: The sampler's statistics up to the current position. ``incomplete``
            is set at the end.
        sections: Number of sections.
        is_complete: True if the last section was closed and nothing is damaged.
        is_written: True if a recorder was still writing the file when it was opened.

    Raises:
        BadRecording: It is not a recording, or its major version is newer.
    """

    def __init__(self, path: Path_, filters: Filters | None = None) -> None:
        self._path, self._name = Path(path), str(path)
        self._filters = filters or Filters()
        self.statistics = Statistics()
        self.sections = 0
        self.is_complete = False
        with self._path.open("rb") as file:
            self.is_written = _is_written(file)
            self.meta = self._first_meta(file)
        self._forget()

    def __iter__(self) -> Iterator[Sample]:
        return self._filters.of(self._read()) if self._filters.are_set else self._read()

    def read(self) -> Recorded:
        """Read and count all samples that match the filters.

        Raises:
            UsageError: A filter's expression is malformed.
        """
        meta = self.meta
        counts = StackCounts(Statistics(meta.unit, meta.rate, meta.started_ns))
        threads: dict[RubyThread, bool] = {}
        counts.add_all(self._filters.of(self._read(), threads))
        own = self.statistics
        counts.statistics.take_losses(own)
        counts.statistics.gap_ns = own.gap_ns
        counts.statistics.incomplete = own.incomplete
        again = lambda: Recording(self._name, self._filters)  # noqa: E731
        found = ((each.pid, thread_name(each)) for each in threads)
        missing = self._filters.missing(self._name, found)
        return Recorded(Profile(counts, meta, again), tuple(self._notes()), missing)

    def _notes(self) -> Iterator[str]:
        meta = self.meta
        if (meta.mode, meta.unit) == ("wall", "ns") and meta.weights != RUN_TIME:
            yield (
                f"{self._name} was recorded by an older version: a method that waits"
                " may show running time of the methods before it, up to one sampling"
                " period per wait"
            )
        if self.is_written:
            yield f"{self._name} is still being written"

    def _read(self) -> Iterator[Sample]:
        self._forget()
        with self._path.open("rb") as file:
            check_file_header(file.read(FILE_HEADER_SIZE), str(self._path))
            damage = None
            try:
                yield from self._samples(file)
            except Damaged as damaged:
                damage = damaged
                self.is_complete = False
        if not self.is_complete:
            at_ns = self.statistics.ended_ns
            self.statistics.incomplete = self.incomplete(damage, at_ns)

    def incomplete(
        self, damage: Damaged | None, at_ns: int, name: str = ""
    ) -> Incomplete | None:
        """Return why a recording lacks its end; None if it is still being written.

        Args:
            damage: The damage that ended the reading; None if the last block is
                complete.
            at_ns: CLOCK_REALTIME of the last data.
            name: Name of the file in its folder, if the recording is a folder.
        """
        if damage is not None and not isinstance(damage, CutOff):
            detail = f"{name}: {damage}" if name else str(damage)
            return Incomplete("damaged", at_ns, detail)
        return None if self.is_written else Incomplete("cut off", at_ns, name)

    def _first_meta(self, file: BinaryIO) -> Meta:
        check_file_header(file.read(FILE_HEADER_SIZE), str(self._path))
        try:
            for kind, payload in blocks(file):
                if kind == BlockType.META:
                    return decode_meta(payload)
        except Damaged:
            pass
        return Meta()

    def _forget(self) -> None:
        meta = self.meta
        self.statistics = Statistics(meta.unit, meta.rate, meta.started_ns)
        self.sections = 0
        self.is_complete = False

    def _samples(self, file: BinaryIO) -> Iterator[Sample]:
        tables = TablesReader()
        earlier = Statistics()
        for kind, payload in blocks(file):
            self.is_complete = kind == BlockType.END
            if kind == BlockType.SAMPLES:
                yield from self._unpacked(payload, tables)
            elif kind == BlockType.LOSSES:
                self.statistics.take_losses(earlier.plus(decode_losses(payload)))
            elif kind == BlockType.META:
                began = decode_meta(payload).started_ns
                if self.sections and began:
                    self.statistics.gap_ns += max(0, began - self.statistics.ended_ns)
                tables = TablesReader()
                earlier = self.statistics.copy()
                self.sections += 1
            else:
                tables.add(kind, payload)

    def _unpacked(self, payload: bytes, tables: TablesReader) -> Iterator[Sample]:
        columns, _ = unpack_columns(SAMPLE_COLUMNS, payload)
        steps, *others = columns
        own = self.statistics
        for time_ns, thread, stack, state, flags, weight, fiber in zip(
            accumulate(steps), *others, strict=True
        ):
            own.samples += 1
            own.ended_ns = max(own.ended_ns, time_ns)
            known_state = _STATES.get(state, ThreadState.UNKNOWN)
            known_stack = tables.stack(stack)
            if known_state is _RUNNING and known_stack.frames[-1:] == _IN_RUN_QUEUE:
                known_state = ThreadState.RUNNABLE  # older versions wrote RUNNING
            known = SampleFlags.CLEAN
            if flags & _KNOWN_FLAGS:
                known = SampleFlags(flags & _KNOWN_FLAGS)
                own.flag(known)
            yield Sample(
                time_ns,
                tables.thread(thread),
                known_state,
                known_stack,
                weight,
                known,
                fiber,
            )


_STATES = {int(state): state for state in ThreadState}
_RUNNING = ThreadState.RUNNING
_IN_RUN_QUEUE = (RUN_QUEUE,)
_KNOWN_FLAGS = sum(map(int, SampleFlags))
