"""``report`` of recordings of calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import click

from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.callrecording import MODE, CallsRecording
from rbtrace_py.aggregate.calls import Told
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.recording import Recording, is_recording
from rbtrace_py.cli import rendering as r
from rbtrace_py.errors import UsageError
from rbtrace_py.report.calls import CallLines, CallsForm
from rbtrace_py.report.chrome import chrome_pieces
from rbtrace_py.report.evented import evented_pieces
from rbtrace_py.report.perfetto import perfetto_pieces
from rbtrace_py.session.report import Filters, Recorded

CALL_FORMATS = ("calls", "perfetto", "chrome")
"""Beside those that samples have, too."""
_EXTENSIONS = {
    "calls": "",
    "perfetto": ".perfetto-trace",
    "chrome": ".trace.json",
    "speedscope": ".speedscope.json",
}

Render = Callable[[Iterable[Told], CallsRecording, dict[str, Any], BinaryIO], None]


def has_calls(path: str) -> bool:
    """Is it a recording of ``calls --record``?"""
    return is_recording(path) and Recording(path).meta.mode == MODE


def show_calls(path: str, filters: Filters, values: dict[str, Any], stem: str) -> None:
    """Write it as ``--format`` and ``-o`` say."""
    if filters.states:
        raise UsageError("calls have no states")
    recording = CallsRecording(path)
    name = values["format_"] or "calls"
    told = _wanted(recording, filters)
    if name in _EXTENSIONS:
        own_name = stem + _EXTENSIONS[name] if _EXTENSIONS[name] else ""
        with r.destination(values["output"], own_name, [path]) as file:
            _RENDERS[name](told, recording, values, file)
    else:
        r.render(_folded(told, recording), name, values, stem, [path])
    for note in _notes(path, recording):
        click.echo(f"rbtrace-py: {note}", err=True)


def read_folded(path: str, filters: Filters) -> Recorded:
    """Its calls folded, as what samples make."""
    recording = CallsRecording(path)
    profile = _folded(_wanted(recording, filters), recording)
    return Recorded(profile, tuple(_notes(path, recording)))


def _wanted(recording: CallsRecording, filters: Filters) -> Iterator[Told]:
    try:
        expression = re.compile(filters.thread)
    except re.error as error:
        raise UsageError(f"--thread {filters.thread!r}: {error}") from error
    for told in recording:
        name = recording.names.get(told.event.stack.tid, "")
        if (not filters.pids or told.pid in filters.pids) and expression.search(name):
            yield told


def _folded(told: Iterable[Told], recording: CallsRecording) -> Profile:
    fold = CallFold(recording.names)
    for each in told:
        fold.add(each)
    return Profile(fold.take(recording.statistics.copy()), recording.meta)


def _calls(
    told: Iterable[Told],
    recording: CallsRecording,
    values: dict[str, Any],
    file: BinaryIO,
) -> None:
    form = CallsForm(
        by_thread=values["threads"],
        with_pid=len(recording.meta.pids) > 1,
        names=recording.names,
    )
    lines = CallLines(form, r.options_of(values, file).style)
    _write(file, (f"{line}\n" for each in told for line in lines.lines(each)))
    _write(file, (f"{line}\n" for line in lines.end()))


def _perfetto(
    told: Iterable[Told],
    recording: CallsRecording,
    values: dict[str, Any],
    file: BinaryIO,
) -> None:
    for piece in perfetto_pieces(told, recording.names):
        file.write(piece)


def _chrome(
    told: Iterable[Told],
    recording: CallsRecording,
    values: dict[str, Any],
    file: BinaryIO,
) -> None:
    _write(file, chrome_pieces(told, recording.names))


def _speedscope(
    told: Iterable[Told],
    recording: CallsRecording,
    values: dict[str, Any],
    file: BinaryIO,
) -> None:
    title = values.get("title") or recording.meta.command
    _write(file, evented_pieces(told, recording.names, title))


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
    if recording.damage:
        yield f"{path} is not whole ({recording.damage}): what follows is missing"
    elif not recording.is_complete:
        yield f"{path} was not closed: its last second may be missing"
    lost = recording.statistics.failed
    if lost:
        yield f"{lost:,} events were lost while it was written"
