"""``report`` of recordings of calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.aggregate.switches import CpuOfCalls, CpuTimes, Switch
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.options import rbtrace_times_option
from rbtrace_py.errors import NoSuchTarget, UsageError
from rbtrace_py.model.recording_meta import CALLS_MODE
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.sample_recording import Recording, is_recording
from rbtrace_py.report.exchange.chrome import chrome_pieces
from rbtrace_py.report.exchange.perfetto import perfetto_pieces
from rbtrace_py.report.exchange.speedscope_calls import evented_pieces
from rbtrace_py.report.terminal.calls import CallLines, CallsForm
from rbtrace_py.session.stacks.report import Filters, Recorded

CALL_FORMATS = ("calls", "perfetto", "chrome")
"""Beside those that samples have, too."""
_CALLS_ALONE = ("calls", "speedscope")
"""Formats that do not show when threads were on CPUs."""
_EXTENSIONS = {
    "calls": "",
    "perfetto": ".perfetto-trace",
    "chrome": ".trace.json",
    "speedscope": ".speedscope.json",
}

_ENDINGS = {
    ".perfetto-trace": "perfetto",
    ".trace.json": "chrome",
    ".txt": "calls",
}

Timeline = Iterable[ReportedCall | Switch]


def has_calls(path: str) -> bool:
    """Is it a recording of ``calls --record``, or a folder of them?"""
    if Path(path).is_dir():
        return True
    return is_recording(path) and Recording(path).meta.mode == CALLS_MODE


def call_format_of_file(path: str | None) -> str | None:
    """The format of calls alone that a file's name says."""
    found = (each for each in _ENDINGS if (path or "").lower().endswith(each))
    return _ENDINGS.get(next(found, ""))


@dataclass(frozen=True, eq=False, repr=False)
class CallReportOptions(r.ReportingOptions):
    """Also of recordings of calls."""

    cpu: bool = option("--cpu", after="sort", help="Show each call's on-CPU time.")
    rbtrace_times: bool = rbtrace_times_option()

    @property
    def of_calls(self) -> str | None:
        """The option that was given and needs lines of calls."""
        given = {"--cpu": self.cpu, "--rbtrace-times": self.rbtrace_times}
        return next((name for name, value in given.items() if value), None)


def show_calls(
    path: str, filters: Filters, options: CallReportOptions, stem: str
) -> Statistics:
    """Write it as ``--format`` and ``-o`` say; return the recording's statistics."""
    if filters.states:
        raise UsageError("recordings of calls have no states")
    recording = CallsRecording(path)
    name = options.format_ or "calls"
    _check_calls(path, recording, name, options)
    chosen = _Chosen(recording, filters)
    missing = chosen.missing(path)
    if missing is not None:
        raise missing
    timeline = chosen.timeline(options.cpu or name not in _CALLS_ALONE)
    if name in _EXTENSIONS:
        own_name = stem + _EXTENSIONS[name] if _EXTENSIONS[name] else ""
        with r.destination(options.output, own_name, [path]) as file:
            _RENDERS[name](timeline, chosen, options, file)
        if name != "calls" or options.output not in (None, "-"):
            r.say_gaps(path, recording.statistics)
    else:
        r.render(_folded(timeline, recording), options, stem, [path])
    for note in _notes(path, recording):
        say_note(note)
    return recording.statistics


def read_folded(path: str, filters: Filters) -> Recorded:
    """Its calls folded, as what samples make."""
    recording = CallsRecording(path)
    chosen = _Chosen(recording, filters)
    profile = _folded(chosen.timeline(has_switches=False), recording)
    return Recorded(profile, tuple(_notes(path, recording)), chosen.missing(path))


def _check_calls(
    path: str, recording: CallsRecording, name: str, options: CallReportOptions
) -> None:
    if options.of_calls and name != "calls":
        raise UsageError(f"{options.of_calls} needs --format calls, not {name}")
    if options.cpu and not recording.has_switches():
        raise UsageError(
            f"{path} has no CPU times",
            "Record as root, without --no-cpu",
        )


class _Chosen:
    """A recording, of which ``filters`` leave some threads; UsageError for wrong ones.

    What is read of it, as its statistics, is of what was read last.
    """

    def __init__(self, recording: CallsRecording, filters: Filters) -> None:
        self.recording = recording
        self._filters = filters
        self._pids = filters.pids
        try:
            self._expression = re.compile(filters.thread)
        except re.error as error:
            raise UsageError(f"--thread {filters.thread!r}: {error}") from error

    def timeline(self, has_switches: bool) -> Iterator[ReportedCall | Switch]:
        """Its calls, in order, and what the scheduler did."""
        for each in self.recording.timeline() if has_switches else self.recording:
            if isinstance(each, ReportedCall):
                is_wanted = self._has_process(each.pid) and self._has(each.thread)
            else:
                # One without a process, or a thread, tells of all.
                is_wanted = not each.pid or self._has_process(each.pid)
                is_wanted &= not each.tid or self._has((each.pid, each.tid))
            if is_wanted:
                yield each

    def missing(self, path: str) -> NoSuchTarget | None:
        """The error where nothing is left."""
        if not self._filters.are_set:
            return None
        names = self.recording.names
        stacks = self.recording.stacks()
        threads = ((t.pid, names.get((t.pid, t.tid or 0), "")) for t, _ in stacks)
        return self._filters.missing(path, threads)

    def has_several_stacks(self) -> bool:
        """Are there calls of more than one of Ruby's stacks?"""
        first: tuple[int, int] | None = None
        for thread, number in self.recording.stacks():
            pid, key = thread.pid, (thread.pid, thread.tid or 0)
            if self._has_process(pid) and self._has(key):
                if first not in (None, (pid, number)):
                    return True
                first = (pid, number)
        return False

    def _has_process(self, pid: int) -> bool:
        return not self._pids or pid in self._pids

    def _has(self, thread: Thread) -> bool:
        name = self.recording.names.get(thread, "")
        return self._expression.search(name) is not None


def _folded(timeline: Timeline, recording: CallsRecording) -> Profile:
    fold = CallFold()
    times = CpuTimes()
    for each in timeline:
        if isinstance(each, Switch):
            times.feed(each)
        else:
            fold.add(each)
    calls, counts = StackCounts(), StackCounts(recording.statistics.copy())
    fold.take(counts, recording.names, int, calls)
    times.end(recording.statistics.ended_ns)
    cpu = times if times.threads else None
    names = recording.names
    return Profile(counts, recording.meta, cpu=cpu, names=names, calls=calls)


def _calls(
    timeline: Timeline,
    chosen: _Chosen,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    form = CallsForm(
        rbtrace_times=options.rbtrace_times,
        by_thread=options.threads,
        column=not options.threads and chosen.has_several_stacks(),
        with_pid=len(chosen.recording.meta.pids) > 1,
        names=chosen.recording.names,
    )
    lines = CallLines(form, options.of_report(file).style)
    reported = _with_cpu(timeline)
    _write(file, (f"{line}\n" for each in reported for line in lines.lines(each)))
    _write(file, (f"{line}\n" for line in lines.end()))
    _write(file, (f"*** {gap}\n" for gap in chosen.recording.statistics.gaps()))


def _with_cpu(timeline: Timeline) -> Iterator[ReportedCall]:
    """Calls alone, with how much of each was on a CPU where switches tell."""
    cpu: CpuOfCalls | None = None
    for each in timeline:
        if isinstance(each, Switch):
            cpu = cpu or CpuOfCalls()
            cpu.feed(each)
            continue
        if cpu is not None:
            cpu.add(each)
        yield each


def _perfetto(
    timeline: Timeline,
    chosen: _Chosen,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    for piece in perfetto_pieces(timeline, chosen.recording.names, _end_of(chosen)):
        file.write(piece)


def _chrome(
    timeline: Timeline,
    chosen: _Chosen,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    _write(file, chrome_pieces(timeline, chosen.recording.names, _end_of(chosen)))


def _speedscope(
    timeline: Timeline,
    chosen: _Chosen,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    recording = chosen.recording
    title = options.title or recording.meta.command
    _write(file, evented_pieces(_with_cpu(timeline), recording.names, title))


def _end_of(chosen: _Chosen) -> Callable[[], int]:
    """Return the recording's end, known once all is read."""
    return lambda: chosen.recording.statistics.ended_ns


Render = Callable[[Timeline, _Chosen, CallReportOptions, BinaryIO], None]
_RENDERS: dict[str, Render] = {
    "calls": _calls,
    "perfetto": _perfetto,
    "chrome": _chrome,
    "speedscope": _speedscope,
}


def _write(file: BinaryIO, texts: Iterable[str]) -> None:
    for text in texts:
        file.write(text.encode("utf-8", "replace"))


def _notes(path: str, recording: CallsRecording) -> Iterator[str]:
    if recording.is_written:
        yield f"{path} is still being written"
    lost = recording.statistics.failed
    if lost:
        yield f"{lost:,} events were lost during recording"
