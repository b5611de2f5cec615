"""The formats of ``--format``, for every command that reports samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.errors import UsageError
from rbtrace_py.report.sample_query import ReportOptions

Render = Callable[[Profile, ReportOptions, BinaryIO], None]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of samples.

    Attributes:
        name: Name on the command line.
        extension: Extension of its files, with the dot.
        is_text: True if people read it on a terminal. It then goes to standard output
            unless ``-o`` names a file. Other formats always go to a file.
        render: Function that writes a complete report, with text in UTF-8.
        says_losses: True if the text ends with the number of samples and the losses.
        is_summary: True if its rows are methods or lines, without threads and states.
    """

    name: str
    extension: str
    is_text: bool
    render: Render
    says_losses: bool = False
    is_summary: bool = False


def _lines(make: Callable[[Profile, ReportOptions], Iterator[str]]) -> Render:
    def render(profile: Profile, options: ReportOptions, file: BinaryIO) -> None:
        _write(file, (f"{line}\n" for line in make(profile, options)))

    return render


def _pieces(make: Callable[[Profile, ReportOptions], Iterator[str]]) -> Render:
    def render(profile: Profile, options: ReportOptions, file: BinaryIO) -> None:
        _write(file, make(profile, options))

    return render


def _write(file: BinaryIO, texts: Iterable[str]) -> None:
    for text in texts:
        file.write(text.encode("utf-8", "replace"))


def _folded(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.exchange.folded import folded_lines

    return folded_lines(profile.counts, options.folding)


def _flamegraph(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.flamegraph.svg import flamegraph_pieces

    return flamegraph_pieces(profile, options)


def _speedscope(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.exchange.speedscope import speedscope_pieces

    return speedscope_pieces(profile, options)


def _pprof(profile: Profile, options: ReportOptions, file: BinaryIO) -> None:
    from rbtrace_py.report.exchange.pprof import pprof_bytes

    file.write(pprof_bytes(profile, options))


def _callgrind(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.exchange.callgrind import callgrind_lines

    return callgrind_lines(profile, options)


def _summary(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.terminal.summary import summary_lines

    return summary_lines(profile, options)


def _summary_by_line(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.terminal.summary import summary_by_line_lines

    return summary_by_line_lines(profile, options)


def _readable(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.terminal.samples import readable_lines

    return readable_lines(profile, options)


def _json(profile: Profile, options: ReportOptions) -> Iterator[str]:
    from rbtrace_py.report.json.serializer import dumps
    from rbtrace_py.report.json.stacks import stacks_document

    yield dumps(stacks_document(profile))


FORMATS = {
    format_.name: format_
    for format_ in (
        Format("folded", ".folded", True, _lines(_folded)),
        Format("flamegraph", ".svg", False, _pieces(_flamegraph)),
        Format("speedscope", ".speedscope.json", False, _pieces(_speedscope)),
        Format("pprof", ".pb.gz", False, _pprof),
        Format("callgrind", ".callgrind", False, _lines(_callgrind)),
        Format("summary", ".txt", True, _lines(_summary), True, True),
        Format("summary-by-line", ".txt", True, _lines(_summary_by_line), True, True),
        Format("readable", ".txt", True, _lines(_readable), True),
        Format("json", ".json", True, _lines(_json)),
    )
}
"""Formats by name, in the order of ``--help``."""


def format_named(name: str) -> Format:
    """Return a format by its name.

    Raises:
        UsageError: The format is unknown.
    """
    if name not in FORMATS:
        raise UsageError(f"unknown format: {name}", f"Use one of {', '.join(FORMATS)}")
    return FORMATS[name]
