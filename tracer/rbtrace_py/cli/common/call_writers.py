"""Destinations of ``calls``: lines, JSON, one file per process, or a recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import click

from rbtrace_py import __version__
from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall
from rbtrace_py.aggregate.sampling import utc
from rbtrace_py.cli.common.messages import say_note, say_wrote
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.options import (
    JsonOption,
    calls_output_option,
    rbtrace_times_option,
)
from rbtrace_py.cli.common.output import Output, cannot_write, opened
from rbtrace_py.model.recording_meta import CALLS_MODE, Meta
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_segments import SegmentsWriter
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from rbtrace_py.report.json.calls import call_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.terminal.calls import CallLines, CallsForm
from rbtrace_py.report.units import format_count
from rbtrace_py.session.methods.calls import Calls
from rbtrace_py.session.methods.recorded_calls import RecordedCalls

_ENDS = (CallEventKind.RETURNED, CallEventKind.ENDED)


class WritingOptions(JsonOption):
    """Options for the content and the destination of lines."""

    by_thread: bool = option("--by-thread", help="Group lines by thread.")
    start_time: bool = option("-t", "--start-time", help="Show when each call began.")
    no_duration: bool = option("--no-duration", help="Hide durations.")
    rbtrace_times: bool = rbtrace_times_option()
    indent: int = option(
        "-r",
        "--prefix",
        type=click.IntRange(0, 16),
        default=2,
        help="Indentation of nested calls, in spaces.",
    )
    output: str | None = calls_output_option()
    appends: bool = option("-a", "--append", help="Append to the -o file.")


_Told = TypeVar("_Told", contravariant=True)


class Writing(Protocol[_Told]):
    """Writer of a session's calls.

    Attributes:
        deleted: Number of calls that were written, but deleted because the disk was
            full.
    """

    deleted: int

    def write(self, told: _Told, /) -> int:
        """Write an event or a step; return how many calls ended with it."""

    def flush(self) -> None: ...

    def end(self, has_all: bool) -> None:
        """Write open calls; ``has_all``: as many as --count allows have returned."""

    def last_words(self, document: dict[str, object]) -> None:
        """Write the final JSON document, if the format has one."""


class ReadableLines:
    """Rate limiter for lines: it passes what a person can read, and counts the rest.

    A burst passes completely. After a gap, about a second's worth of lines passes at a
    time.
    """

    BURST = 1000
    A_SECOND = 100

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._room = float(self.BURST)
        self._gap = 0
        self.left_out = 0

    def passed(self, lines: list[str]) -> list[str]:
        """Return these lines, or none of them."""
        now = self._clock()
        self._room = min(self.BURST, self._room + (now - self._at) * self.A_SECOND)
        self._at = now
        if self._room < (self.A_SECOND if self._gap else len(lines)):
            self._gap += len(lines)
            self.left_out += len(lines)
            return []
        self._room -= len(lines)
        return [*self.gap(), *lines]

    def gap(self) -> list[str]:
        """Return a line about those left out since the last passed line."""
        gap, self._gap = self._gap, 0
        lines = "1 line" if gap == 1 else f"{gap:,} lines"
        return [f"*** {lines} left out"] if gap else []


class Writers:
    """Writer of lines to one destination, or to one file per process."""

    deleted = 0

    def __init__(
        self, session: Calls, stack: ExitStack, options: WritingOptions
    ) -> None:
        self._session = session
        self._stack = stack
        self._options = options
        self._path = options.output
        self._is_split = self._path is not None and not session.targets.is_single
        self._outputs: dict[
            int, tuple[Output, Callable[[ReportedCall], list[str]]]
        ] = {}
        self._lines: list[CallLines] = []
        self._readable: ReadableLines | None = None
        if not self._is_split:
            self._to(0)

    def write(self, reported: ReportedCall) -> int:
        output, lines = self._to(reported.pid if self._is_split else 0)
        found = lines(reported)
        if found and self._readable is not None:
            found = self._readable.passed(found)
        if found:
            found.append("")
            output.write("\n".join(found))
        event = reported.event
        return int(event.what in _ENDS and event.start is not None)

    def flush(self) -> None:
        for output, _ in self._outputs.values():
            output.flush()

    def end(self, has_all: bool) -> None:
        for (output, _), lines in zip(
            self._outputs.values(), self._lines, strict=False
        ):
            output.lines(self._readable.gap() if self._readable else ())
            output.lines(lines.end(has_all))
        self.flush()
        if self._readable is not None and self._readable.left_out:
            left_out = format_count(self._readable.left_out)
            text = f"{left_out} lines left out: calls came faster than anyone can read"
            hint = "-o FILE or --record FILE has them all; -m SELECTOR makes them fewer"
            say_note(f"{text}; {hint}")

    def last_words(self, document: dict[str, object]) -> None:
        for output, _ in self._outputs.values():
            output.lines([dumps(document)])

    def _to(self, pid: int) -> tuple[Output, Callable[[ReportedCall], list[str]]]:
        if pid not in self._outputs:
            path = f"{self._path}.{pid}" if pid else self._path
            append = self._options.appends
            output = self._stack.enter_context(opened(path, append))
            self._outputs[pid] = (output, self._maker(output, pid))
        return self._outputs[pid]

    def _maker(self, output: Output, pid: int) -> Callable[[ReportedCall], list[str]]:
        if self._options.as_json:
            return self._documents
        if output.stream.isatty():
            self._readable = ReadableLines()
        lines = CallLines(self._form(pid), output.style)
        self._lines.append(lines)
        return lines.lines

    def _documents(self, reported: ReportedCall) -> list[str]:
        document = call_document(reported, self._session.thread_names)
        return [] if document is None else [dumps(document)]

    def _form(self, pid: int) -> CallsForm:
        options = self._options
        names = self._session.thread_names
        threads = sum(pid in (0, each) for each, _ in names)
        return CallsForm(
            times=options.start_time,
            durations=not options.no_duration,
            rbtrace_times=options.rbtrace_times,
            indent=options.indent,
            on_return=bool(self._session.options.slow_ns),
            by_thread=options.by_thread,
            column=threads > 1,
            with_pid=not self._is_split and not self._session.targets.is_single,
            names=names,
        )


@dataclass(frozen=True)
class Keep:
    """Limits of a folder of recordings: newest seconds, and bytes."""

    seconds: float
    size: int


class CallRecorder:
    """Writer of a recording. It writes nothing to standard output."""

    deleted = 0

    def __init__(
        self,
        session: RecordedCalls,
        stack: ExitStack,
        path: str,
        most: int | None,
        keep: Keep | None = None,
    ) -> None:
        """Open the recording.

        Args:
            session: Session whose calls are recorded.
            stack: Closes the recording when it exits.
            path: File, or with ``keep`` a folder.
            most: Maximum number of calls in the recording; None for all.
            keep: Limits of the folder.

        Raises:
            RbtraceError: The recording cannot be written.
        """
        self._path = path
        targets = session.targets
        first = next(iter(targets.processes.values()))
        command, folder = first.cmdline, first.folder

        def make(file: str | Path) -> CallsWriter:
            meta = Meta(
                started_ns=time.time_ns(),
                unit="ns",
                mode=CALLS_MODE,
                engine="agent",
                pids=tuple(targets.pids),
                command=" ".join(command),
                tool=f"rbtrace-py {__version__}",
                folder=folder,
                most_calls=most or 0,
            )
            names, switches = session.thread_names, session.switches
            ask = session.ask_threads
            return CallsWriter(file, meta, names, switches, lambda thread: ask())

        self._writer: CallsWriter | SegmentsWriter
        try:
            if keep is None:
                self._writer = make(path)
            else:
                keep_ns = round(keep.seconds * 1e9)
                self._writer = SegmentsWriter(
                    Path(path),
                    make,
                    keep_ns,
                    keep.size,
                    time.time_ns(),
                    lambda: say_note(f"disk full: deleting the oldest of {path}"),
                )
        except OSError as error:
            raise cannot_write(path, error) from error
        stack.callback(self._writer.close)

    def write(self, step: RecordedStep) -> int:
        try:
            self._writer.tell(step, time.time_ns())
        except OSError as error:
            raise cannot_write(self._path, error) from error
        return step.calls

    def flush(self) -> None:
        try:
            self._writer.take_switches()
            self._writer.flush_if_due(time.time_ns())
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def end(self, has_all: bool) -> None:
        """Complete the recording, and print its path."""
        try:
            self._writer.close()
        except OSError as error:
            raise cannot_write(self._path, error) from error
        more = ""
        if isinstance(self._writer, SegmentsWriter) and self._writer.deleted:
            self.deleted = self._writer.deleted
            since_ns = CallsRecording(self._path).meta.started_ns
            more = f", complete since {utc(since_ns)}"
        say_wrote(self._path, more)

    def last_words(self, document: dict[str, object]) -> None:
        """Do nothing: a recording contains its own statistics."""
