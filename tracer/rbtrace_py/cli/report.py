"""``report``: what is in a recording, or between two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rbtrace_py.aggregate.idle import without_idle
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common.call_report import (
    CALL_FORMATS,
    call_format_of_file,
    has_calls,
    read_folded,
    show_calls,
)
from rbtrace_py.errors import UsageError
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.report.file_formats import RECORDING, format_of_file
from rbtrace_py.report.flamegraph.svg import difference_pieces
from rbtrace_py.report.formats import FORMATS
from rbtrace_py.report.terminal.diff import diff_lines
from rbtrace_py.report.terminal.latency_diff import latency_diff_lines
from rbtrace_py.session.stacks.report import (
    Filters,
    is_recording,
    open_recorded,
    read_latencies,
)

_STATES = {state.name.lower(): state for state in ThreadState}


@click.command("report", options_metavar="[OPTIONS]")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False)
)
@click.option(
    "--format",
    "wanted",
    type=r.FormatChoice([*FORMATS, *CALL_FORMATS]),
    metavar="FORMAT",
    help=f"{', '.join(FORMATS)}; for calls also {' or '.join(CALL_FORMATS)}.",
)
@click.option("--diff", is_flag=True, help="Compare two files: before, after.")
@click.option(
    "--thread", "thread", metavar="REGEX", help="Only threads whose name matches."
)
@click.option(
    "--state",
    "states_",
    type=click.Choice(list(_STATES)),
    multiple=True,
    help="Only threads in this state; repeatable.",
)
@click.option(
    "-p", "--pid", "pids", type=int, multiple=True, help="Only this pid; repeatable."
)
@r.lines_option
@r.threads_option
@r.states_option
@o.idle_option
@r.reverse_option
@click.option("--cpu", is_flag=True, help="Show each call's on-CPU time.")
@r.title_option
@o.report_output_option
def command(files: tuple[str, ...], diff: bool, **values: Any) -> int:
    """Show a recording, or compare two.

    Without --format, the extension of -o selects the format (see `stacks`). The
    default is a summary by method, or the calls if the recording is from `calls
    --record`. Flame graphs, speedscope, pprof, callgrind, perfetto and chrome go to
    a file beside the recording unless -o names one (- is standard output).

    --diff compares two recordings, or two latency results from --json or --hlog.
    For recordings it shows methods whose share grew or shrank (with --format
    flamegraph, in red and blue); for latency results, percentiles and histograms.

    \b
    Examples:
      rbtrace-py report shop.rbrec
      rbtrace-py report shop.rbrec --format flamegraph --threads
      rbtrace-py report shop.rbrec --format folded --thread 'puma' | head
      rbtrace-py report calls.rbrec --cpu
      rbtrace-py report --diff before.rbrec after.rbrec
      rbtrace-py report --diff monday.hlog tuesday.hlog
    """
    values["format_"] = values.pop("wanted")
    if values["format_"] is None:
        values["format_"] = _by_name(values["output"], diff, files)
    filters = Filters(
        values["thread"] or "",
        _states(values),
        frozenset(values["pids"]),
    )
    if diff:
        _compare(files, filters, values)
    else:
        _show(files, filters, values)
    return 0


def _states(values: dict[str, Any]) -> frozenset[ThreadState]:
    """The states that are shown; none of them: all."""
    chosen = frozenset(_STATES[name] for name in values["states_"])
    if values["idle"] is not False:
        return chosen
    awake = (chosen or frozenset(ThreadState)) - {ThreadState.SLEEPING}
    if not awake:
        raise UsageError("--no-idle and --state sleeping cannot be combined")
    return awake


def _by_name(output: str | None, diff: bool, files: tuple[str, ...]) -> str | None:
    """The format that the name of -o says."""
    of_calls = not diff and has_calls(files[0])
    found = (call_format_of_file(output) if of_calls else None) or format_of_file(
        output
    )
    if found == RECORDING:
        r.check_inputs(str(output), files)
        raise UsageError(f"report cannot write a recording: {output}")
    return None if diff and found == "folded" else found


def _show(files: tuple[str, ...], filters: Filters, values: dict[str, Any]) -> None:
    if len(files) != 1:
        raise UsageError(f"{len(files)} files", "Give one file, or two with --diff")
    if has_calls(files[0]):
        show_calls(files[0], filters, values, _stem(files[0]))
        return
    if values["format_"] in CALL_FORMATS:
        raise UsageError(
            f"{values['format_']} works on calls, but {files[0]} has samples",
            "Record calls with rbtrace-py calls PID --record FILE",
        )
    if values["cpu"]:
        raise UsageError(f"--cpu works on calls, but {files[0]} has samples")
    recorded = open_recorded(files[0], filters)
    _say(recorded.notes)
    if recorded.missing is not None:
        raise recorded.missing
    name = values["format_"] or "summary"
    r.render(recorded.profile, name, values, _stem(files[0]), files)


def _compare(files: tuple[str, ...], filters: Filters, values: dict[str, Any]) -> None:
    if len(files) != 2:
        raise UsageError("--diff needs two files: before and after")
    name = values["format_"]
    if all(map(is_recording, files)):
        _compare_stacks(files, filters, values, name)
        return
    if name or filters.are_set:
        raise UsageError("--format and filters do not apply to latency results")
    before, after = map(read_latencies, files)
    with r.destination(values["output"], "", files) as file:
        style = r.options_of(values, file).style
        _write(file, latency_diff_lines(before, after, style))


def _compare_stacks(
    files: tuple[str, ...], filters: Filters, values: dict[str, Any], name: str | None
) -> None:
    if name not in (None, "flamegraph"):
        raise UsageError(
            f"--diff does not support the format {name}", "Use a table, or flamegraph"
        )
    both = [
        (read_folded if has_calls(path) else open_recorded)(path, filters)
        for path in files
    ]
    for recorded in both:
        _say(recorded.notes)
    # What one of them has began, or ended, between them.
    if all(recorded.missing for recorded in both) and both[0].missing:
        raise both[0].missing
    profiles = [recorded.profile for recorded in both]
    if not values["idle"]:
        profiles = list(map(without_idle, profiles))
    before, after = (profile.counts for profile in profiles)
    if before.statistics.unit != after.statistics.unit:
        raise UsageError("the recordings have different units")
    own_name = f"{_stem(files[1])}.diff.svg" if name else ""
    with r.destination(values["output"], own_name, files) as file:
        options = r.options_of(values, file)
        if name:
            pieces = difference_pieces(before, after, options.folding, options.title)
            file.writelines(piece.encode("utf-8", "replace") for piece in pieces)
        else:
            _write(file, diff_lines(before, after, options.folding, options.style))


def _write(file: Any, lines: Any) -> None:
    file.writelines(f"{line}\n".encode("utf-8", "replace") for line in lines)


def _say(notes: tuple[str, ...]) -> None:
    for note in notes:
        click.echo(f"rbtrace-py: {note}", err=True)


def _stem(path: str) -> str:
    """The file's name and place without its extension."""
    return str(Path(path).with_suffix(""))
