"""Summaries: self and total shares of methods or lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import Share
from rbtrace_py.aggregate.switches import CpuTimes, State
from rbtrace_py.model.recording_meta import RUN_TIME
from rbtrace_py.model.stacks import Frame, FrameKind
from rbtrace_py.report import units
from rbtrace_py.report.exchange.rows import clean, frame_text
from rbtrace_py.report.paths import shown_path
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.fitting import rows_left, rows_shown
from rbtrace_py.report.terminal.weights import amount, percent, statistics_lines
from rbtrace_py.report.text import cut_left, width

_HEADINGS = {
    "wall": "wall time of the threads shown",
    "offcpu": "time off the CPU",
    "gvl": "time that threads waited for the GVL",
    "calls": "calls shown",
}
"""Names of the total, by mode; ``cpu`` and ``event`` have other headings."""
_SHORTEST_PLACE = 16
"""Minimum columns of a path, however long the name is."""
_MOST_THREADS = 20
"""Threads in the table of CPU times. The others ran for a shorter time."""
_ASLEEP = (State.SLEEPING, State.DISK, State.STOPPED)


def summary_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield ``% self  % total  name`` by method."""
    shares = profile.counts.by_method(options.waits)
    yield from _lines(profile, shares, options, lines=False)


def summary_by_line_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield ``% self  % total  name`` by line."""
    shares = profile.counts.by_line(options.waits)
    yield from _lines(profile, shares, options, lines=True)


def _lines(
    profile: Profile, shares: Sequence[Share], options: ReportOptions, lines: bool
) -> Iterator[str]:
    style = options.style
    everything = profile.one_cpu or profile.counts.weight
    above, below = list(_above(profile, options)), list(_below(profile, style))
    if options.by_total:
        shares = sorted(shares, key=lambda share: -share.total)
    shown = rows_shown(len(shares), options.rows, style, len(above) + len(below))
    yield from above
    for frame, own, total in shares[:shown]:
        columns = f"{percent(own, everything):>6}  {percent(total, everything):>7}  "
        room = style.room - len(columns)
        yield columns + _fitted(frame, lines, room, profile.meta.folder, style)
    what = "more lines" if lines else "more methods"
    yield from rows_left(shown, len(shares), what, style)
    yield from below


def _above(profile: Profile, options: ReportOptions) -> Iterator[str]:
    style, weight = options.style, profile.counts.weight
    if options.title:
        yield style.bold(clean(options.title))
    if profile.one_cpu:
        share = percent(weight, profile.one_cpu)
        # Recordings that version 0.2 made by reading memory count runnable threads,
        # too.
        by_memory = profile.counts.statistics.engine == "memory"
        is_old = by_memory and profile.meta.weights != RUN_TIME
        what = "on CPU or runnable" if is_old else "on CPU"
        yield f"{what}: {share} % of one CPU for the elapsed time"
    elif profile.meta.mode in _HEADINGS:
        weight_text = amount(weight, profile.unit)
        yield f"{_HEADINGS[profile.meta.mode]}: {weight_text}"
    if profile.meta.event:
        yield _event_line(profile)
    yield style.dim("% self  % total  name")


def _below(profile: Profile, style: Style) -> Iterator[str]:
    yield ""
    if profile.cpu is not None:
        yield from _cpu_lines(profile.cpu, profile.names, style)
        yield ""
    yield from statistics_lines(profile.counts.statistics, style)


def _cpu_lines(
    times: CpuTimes, names: Mapping[Thread, str], style: Style
) -> Iterator[str]:
    """Yield a table: ``on CPU  runnable  sleeping  intervals  thread``."""
    threads = times.by_running_time()
    yield style.dim(
        f"{'on CPU':>9}  {'runnable':>9}  {'sleeping':>9}  {'intervals':>9}  thread"
    )
    for thread, own in threads[:_MOST_THREADS]:
        asleep = sum(own.ns[state] for state in _ASLEEP)
        shown = (own.ns[State.RUNNING], own.ns[State.RUNNABLE], asleep)
        cells = [units.duration(ns, style) for ns in shown] + [
            units.format_count(own.intervals)
        ]
        name = clean(names.get(thread) or "thread")
        row = "  ".join(f"{cell:>9}" for cell in cells)
        yield f"{row}  {name} {thread[1]}"
    if len(threads) > _MOST_THREADS:
        yield style.dim(f"and {units.format_count(len(threads) - _MOST_THREADS)} more")
    if times.lost:
        text = units.plural(times.lost, "context switch was", "context switches were")
        yield style.red(f"  {text} lost: times are lower bounds")


def _event_line(profile: Profile) -> str:
    """Return ``shop:sold: 1,000 events``, or ``shop:sold, cents: 500,500``."""
    words = filter(None, (profile.meta.event, profile.meta.argument))
    weight = amount(profile.counts.weight, profile.unit)
    return f"{clean(', '.join(words))}: {weight}"


def _fitted(frame: Frame, lines: bool, room: int, folder: str, style: Style) -> str:
    """Fit a frame into ``room`` columns; a cut text keeps its end.

    If names are not cut, paths are not cut either.
    """
    frame = replace(frame, path=shown_path(frame.path, folder))
    text = share_text(frame, lines)
    name = clean(frame.name)
    place = text[len(name) + 1 :]
    if style.is_whole or width(text) <= room:
        return text
    if not place:
        return cut_left(name, room, style)
    name = cut_left(name, room - 1 - min(width(place), _SHORTEST_PLACE), style)
    return f"{name} {cut_left(place, room - 1 - width(name), style)}"


def share_text(frame: Frame, lines: bool) -> str:
    """Return a frame's name as in folded stacks; a C function has no path."""
    if frame.kind is FrameKind.C and not lines:
        return clean(frame.name)
    return frame_text(frame, lines)
