"""``report``: show a recording or a result, or the difference between two."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from rbtrace_py.aggregate.idle import without_idle
from rbtrace_py.aggregate.methods import MethodGroup
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common.call_report import (
    CALL_FORMATS,
    CallReportOptions,
    call_format_of_file,
    show_calls,
)
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.option_fields import argument, option, typed
from rbtrace_py.errors import TOO_MUCH_LOST, UsageError
from rbtrace_py.model.recording_meta import CALLS_MODE
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.open_recording import has_calls, is_recording, open_recording
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.result_files import read_result
from rbtrace_py.report.file_formats import RECORDING, format_of_file
from rbtrace_py.report.flamegraph.svg import difference_pieces
from rbtrace_py.report.formats import FORMATS
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.diff import diff_lines
from rbtrace_py.report.terminal.methods import TOP, methods_report
from rbtrace_py.report.terminal.result_diff import result_diff_lines
from rbtrace_py.report.terminal.results import (
    count_report,
    latency_report,
    values_report,
)
from rbtrace_py.report.text import escape
from rbtrace_py.session.stacks.off_cpu import WAIT_FRAMES

_STATES = {state.name.lower(): state for state in ThreadState}


class _Options(CallReportOptions):
    files: tuple[str, ...] = argument(
        nargs=-1, required=True, metavar="FILE...", type=click.Path()
    )
    format_: str | None = option(
        "--format",
        type=r.FormatChoice([*FORMATS, *CALL_FORMATS]),
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}; for calls also {' or '.join(CALL_FORMATS)}.",
    )
    diff: bool = option("--diff", help="Compare two files: before, after.")
    thread: str | None = option(
        "--thread", metavar="REGEX", help="Only threads whose name matches."
    )
    states_: tuple[str, ...] = option(
        "--state",
        type=click.Choice(list(_STATES)),
        help="Only samples in this state (running: on a CPU); repeatable.",
    )
    pids: tuple[int, ...] = option(
        "-p", "--pid", type=int, help="Only this pid; repeatable."
    )

    def of_report(self, stream: BinaryIO) -> ReportOptions:
        """Return the options of a report whose text goes to ``stream``.

        If only off-CPU states are selected, a summary adds the time of waits to
        methods.
        """
        found = super().of_report(stream)
        if not self.states_ or "running" in self.states_:
            return found
        return replace(found, waits=WAIT_FRAMES)


@click.command("report")
@typed(_Options)
def command(options: _Options) -> int:
    """Show a recording or a result, or compare two.

    Without --format, the extension of -o selects the format (see `stacks`). The
    default is a summary by method, or the calls if the recording is from `calls
    --record`. Flame graphs, speedscope, pprof, callgrind, perfetto and chrome go to
    a new file beside the recording unless -o names one (- is standard output). A folder
    of `calls --keep` is read as one recording, also while it is written.
    A result of latency, count or values (--json, --hlog) is shown as that command
    does. The exit code is 5 if a recording is cut off or damaged, or if
    a full disk deleted more calls than are left.

    --diff compares two recordings, or two results of latency or count. For recordings
    it shows methods whose share grew or shrank (with --format flamegraph, in red and
    blue); for latency, percentiles and histograms. Counts, and results of many methods
    or keys, are tables with the greatest change first. A ? marks a change that may be
    chance.

    \b
    Examples:
      rbtrace-py report shop.rbrec
      rbtrace-py report shop.rbrec --format flamegraph --threads
      rbtrace-py report shop.rbrec --format folded --thread 'puma' | head
      rbtrace-py report calls.rbrec --cpu
      rbtrace-py report slow-requests
      rbtrace-py report --diff before.rbrec after.rbrec
      rbtrace-py report --diff monday.hlog tuesday.hlog
      rbtrace-py report latency.json
    """
    if options.format_ is None:
        options = replace(options, format_=_by_name(options))
    filters = Filters(options.thread or "", _states(options), frozenset(options.pids))
    shown = (_compare if options.diff else _show)(options.files, filters, options)
    return TOO_MUCH_LOST if any(own.is_useless for own in shown) else 0


def _states(options: _Options) -> frozenset[ThreadState]:
    """Return the selected states; none if all are shown."""
    chosen = frozenset(_STATES[name] for name in options.states_)
    if options.idle is not False:
        return chosen
    awake = (chosen or frozenset(ThreadState)) - {ThreadState.SLEEPING}
    if not awake:
        raise UsageError("--no-idle and --state sleeping cannot be combined")
    return awake


def _by_name(options: _Options) -> str | None:
    """Return the format that the name of -o implies."""
    output, diff, files = options.output, options.diff, options.files
    of_calls = not diff and has_calls(files[0])
    found = (call_format_of_file(output) if of_calls else None) or format_of_file(
        output
    )
    if found == RECORDING:
        r.check_inputs(str(output), files)
        raise UsageError(f"report cannot write a recording: {output}")
    return None if diff and found == "folded" else found


def _show(
    files: tuple[str, ...], filters: Filters, options: _Options
) -> list[Statistics]:
    """Write the report; return the statistics of its recording."""
    if len(files) != 1:
        raise UsageError(f"{len(files)} files", "Give one file, or two with --diff")
    if not is_recording(files[0]):
        _show_result(files[0], filters, options)
        return []
    recording = open_recording(files[0], filters)
    if isinstance(recording, CallsRecording):
        return [show_calls(files[0], recording, options, _stem(files[0]))]
    if options.format_ in CALL_FORMATS:
        raise UsageError(
            f"{options.format_} works on calls, but {files[0]} has samples",
            "Record calls with rbtrace-py calls PID --record FILE",
        )
    if options.of_calls:
        raise UsageError(
            f"{options.of_calls} works on calls, but {files[0]} has samples"
        )
    r.check_separate(options)
    recorded = recording.read()
    _say(recorded.notes)
    if recorded.missing is not None:
        raise recorded.missing
    r.render(recorded.profile, options, _stem(files[0]), files)
    return [recorded.profile.counts.statistics]


def _show_result(path: str, filters: Filters, options: _Options) -> None:
    """Write a result of latency, count, or values as that command would."""
    _check_result_options(filters, options)
    result = read_result(path)
    with r.destination(options.output, "", [path]) as file:
        form = options.of_report(file)
        if result.command == "count":
            lines = count_report(result, form.style)
        elif result.command == "values":
            lines = values_report(result, form.style)
        elif any(isinstance(group, MethodGroup) for group in result.groups):
            lines = methods_report(result, form.style, top=options.rows or TOP)
        else:
            lines = latency_report(result, form.style)
        _write(file, lines)


def _check_result_options(filters: Filters, options: _Options) -> None:
    if options.format_ or filters.are_set or options.threads or options.states:
        raise UsageError(
            "--format, --threads, --states and filters apply to recordings, not to"
            " results of latency, count or values"
        )


def _compare(
    files: tuple[str, ...], filters: Filters, options: _Options
) -> list[Statistics]:
    """Write the differences; return the statistics of the recordings."""
    if len(files) != 2:
        raise UsageError("--diff needs two files: before and after")
    name = options.format_
    if all(map(is_recording, files)):
        return _compare_stacks(files, filters, options, name)
    _check_result_options(filters, options)
    before, after = map(read_result, files)
    commands = {before.command, after.command}
    if len(commands) > 1 or commands == {"values"}:
        raise UsageError(
            f"--diff cannot compare results of {' and '.join(sorted(commands))}",
            "Give two results of latency, or two of count",
        )
    _say_differences(
        ("probes", ", ".join(before.series), ", ".join(after.series)),
        ("--by", before.by, after.by),
        ("--filter", before.filter, after.filter),
    )
    with r.destination(options.output, "", files) as file:
        _write(file, result_diff_lines(before, after, options.of_report(file)))
    return []


def _compare_stacks(
    files: tuple[str, ...], filters: Filters, options: _Options, name: str | None
) -> list[Statistics]:
    if name not in (None, "flamegraph"):
        raise UsageError(
            f"--diff does not support the format {name}", "Use a table, or flamegraph"
        )
    of_calls = replace(filters, states=frozenset())
    both = [
        open_recording(path, of_calls if has_calls(path) else filters).read()
        for path in files
    ]
    for path, recorded in zip(files, both, strict=True):
        _say(recorded.notes)
        r.say_gaps(path, recorded.profile.counts.statistics)
    # A selected thread may have started or ended between the recordings.
    if all(recorded.missing for recorded in both) and both[0].missing:
        raise both[0].missing
    profiles = [recorded.profile for recorded in both]
    if not options.idle:
        profiles = list(map(without_idle, profiles))
    before, after = (profile.counts for profile in profiles)
    modes = {profile.meta.mode for profile in profiles} - {CALLS_MODE}
    if before.statistics.unit != after.statistics.unit or len(modes) > 1:
        raise UsageError(
            "the recordings have different units or modes",
            "Record both with the same --engine and --mode",
        )
    engines = {profile.meta.engine for profile in profiles}
    if engines >= {"bpf", "memory"}:
        say_note(
            "one recording was made by the engine bpf, the other by memory: without"
            " BPF, waits have no reason, and the newest frames may be unknown"
        )
    _say_differences(
        *(
            (name, *(getattr(profile.meta, name) for profile in profiles))
            for name in ("event", "argument")
        )
    )
    own_name = f"{_stem(files[1])}.diff.svg" if name else ""
    with r.destination(options.output, own_name, files) as file:
        form = options.of_report(file)
        if name:
            pieces = difference_pieces(before, after, form.folding, form.title)
            file.writelines(piece.encode("utf-8", "replace") for piece in pieces)
        else:
            _write(file, diff_lines(before, after, form))
    return [before.statistics, after.statistics]


def _say_differences(*queries: tuple[str, str | None, str | None]) -> None:
    """Print notes on queries, each with a name and two values, that differ."""
    style = Style.for_stream(sys.stderr)
    for name, *both in queries:
        before, after = (escape(value or "none", style) for value in both)
        if before != after:
            say_note(f"the files differ in {name}: {before}, then {after}")


def _write(file: Any, lines: Any) -> None:
    file.writelines(f"{line}\n".encode("utf-8", "replace") for line in lines)


def _say(notes: tuple[str, ...]) -> None:
    for note in notes:
        say_note(note)


def _stem(path: str) -> str:
    """Return the file's path without its extension."""
    return str(Path(path).with_suffix(""))
