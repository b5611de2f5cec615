"""``report`` for recordings of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from rbtrace_py.aggregate.calls import ReportedCall
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.switches import CpuOfCalls
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.options import rbtrace_times_option
from rbtrace_py.errors import UsageError
from rbtrace_py.model.switches import Switch
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.report.exchange.chrome import chrome_pieces
from rbtrace_py.report.exchange.perfetto import perfetto_pieces
from rbtrace_py.report.exchange.speedscope_calls import evented_pieces
from rbtrace_py.report.terminal.calls import CallLines, CallsForm

CALL_FORMATS = ("calls", "perfetto", "chrome")
"""Formats of calls that samples do not have."""
_CALLS_ALONE = ("calls", "speedscope")
"""Formats that do not show when threads were on CPU."""
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


def call_format_of_file(path: str | None) -> str | None:
    """Return the calls-only format that a file's name implies, or None."""
    found = (each for each in _ENDINGS if (path or "").lower().endswith(each))
    return _ENDINGS.get(next(found, ""))


class CallReportOptions(r.ReportingOptions):
    """Options of ``report`` for recordings of calls."""

    cpu: bool = option("--cpu", after="sort", help="Show each call's on-CPU time.")
    rbtrace_times: bool = rbtrace_times_option()

    @property
    def of_calls(self) -> str | None:
        """The given option that applies only to lines of calls, or None."""
        given = {"--cpu": self.cpu, "--rbtrace-times": self.rbtrace_times}
        return next((name for name, value in given.items() if value), None)


def show_calls(
    path: str, recording: CallsRecording, options: CallReportOptions, stem: str
) -> Statistics:
    """Write a report in the format and to the file of ``options``.

    Args:
        path: Recording.
        recording: The opened recording.
        options: Options of the report.
        stem: Name without extension for formats that always go to a file.

    Returns:
        Statistics of the recording.
    """
    name = options.format_ or "calls"
    _check_calls(path, recording, name, options)
    missing = recording.missing()
    if missing is not None:
        raise missing
    has_switches = options.cpu or name not in _CALLS_ALONE
    if name in _EXTENSIONS:
        timeline = recording.timeline(has_switches)
        own_name = stem + _EXTENSIONS[name] if _EXTENSIONS[name] else ""
        with r.destination(options.output, own_name, [path]) as file:
            _RENDERS[name](timeline, recording, options, file)
        if name != "calls" or options.output not in (None, "-"):
            r.say_gaps(path, recording.statistics)
    else:
        r.render(recording.profile(has_switches), options, stem, [path])
    for note in recording.notes():
        say_note(note)
    return recording.statistics


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


def _calls(
    timeline: Timeline,
    recording: CallsRecording,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    form = CallsForm(
        rbtrace_times=options.rbtrace_times,
        by_thread=options.threads,
        column=not options.threads and recording.has_several_stacks(),
        with_pid=len(recording.meta.pids) > 1,
        names=recording.names,
    )
    lines = CallLines(form, options.of_report(file).style)
    reported = _with_cpu(timeline)
    _write(file, (f"{line}\n" for each in reported for line in lines.lines(each)))
    _write(file, (f"{line}\n" for line in lines.end()))
    _write(file, (f"*** {gap}\n" for gap in recording.statistics.gaps()))


def _with_cpu(timeline: Timeline) -> Iterator[ReportedCall]:
    """Yield calls, each with its CPU time if switches were recorded."""
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
    recording: CallsRecording,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    for piece in perfetto_pieces(timeline, recording.names, _end_of(recording)):
        file.write(piece)


def _chrome(
    timeline: Timeline,
    recording: CallsRecording,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    _write(file, chrome_pieces(timeline, recording.names, _end_of(recording)))


def _speedscope(
    timeline: Timeline,
    recording: CallsRecording,
    options: CallReportOptions,
    file: BinaryIO,
) -> None:
    title = options.title or recording.meta.command
    _write(file, evented_pieces(_with_cpu(timeline), recording.names, title))


def _end_of(recording: CallsRecording) -> Callable[[], int]:
    """Return a function that returns the recording's end, once all of it is read."""
    return lambda: recording.statistics.ended_ns


Render = Callable[[Timeline, CallsRecording, CallReportOptions, BinaryIO], None]
_RENDERS: dict[str, Render] = {
    "calls": _calls,
    "perfetto": _perfetto,
    "chrome": _chrome,
    "speedscope": _speedscope,
}


def _write(file: BinaryIO, texts: Iterable[str]) -> None:
    for text in texts:
        file.write(text.encode("utf-8", "replace"))
