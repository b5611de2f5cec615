"""``--format`` and related options, for every command that reports samples."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar

import click

from rbtrace_py.aggregate.idle import without_idle
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.cli.common.messages import say_note, say_wrote
from rbtrace_py.cli.common.option_fields import OptionGroup, option
from rbtrace_py.cli.common.options import idle_option, output_option, rows_option
from rbtrace_py.cli.common.output import STANDARD_OUTPUT, cannot_write, create_bytes
from rbtrace_py.cli.common.writable import check_folder
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.file_formats import format_of_file
from rbtrace_py.report.formats import FORMATS, Format
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.weights import idle_text

_ALIASES = {
    "raw": "folded",
    "collapsed": "folded",
    "summary_by_line": "summary-by-line",
    "svg": "flamegraph",
}
"""Aliases of formats, from py-spy, rbspy, or file extensions, with their names here."""


class FormatChoice(click.Choice):  # type: ignore[type-arg,unused-ignore]
    """Name of a format, or an alias."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        return super().convert(_ALIASES.get(value, value), param, ctx)


class ReportOutputOption(OptionGroup):
    """``-o`` of commands that have ``--format``."""

    output: str | None = output_option()


class ReportingOptions(ReportOutputOption):
    """Options for the layout and destination of a report."""

    # None until ``settled`` chooses the format.
    format_: str | None = option(
        "--format",
        type=FormatChoice(list(FORMATS)),
        metavar="FORMAT",
        help=f"{', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]};"
        " by default from the extension of -o.",
    )
    lines: bool = option("--lines", help="Separate the lines of a method.")
    threads: bool = option("--threads", help="Separate threads.")
    states: bool = option(
        "--states", help="Separate the states running, runnable, waiting and sleeping."
    )
    idle: bool | None = idle_option()
    reverse: bool = option("--reverse", help="Put the innermost frame first.")
    rows: int | None = rows_option()
    sort: str = option(
        "--sort",
        type=click.Choice(["self", "total"]),
        default="self",
        help="Sort order of a table of methods.",
    )
    title: str = option(
        "--title", default="", show_default=False, help="Title of the report."
    )

    @property
    def format(self) -> Format:
        return FORMATS[self.format_ or "summary"]

    @property
    def is_silent(self) -> bool:
        """True if the command prints nothing but the report."""
        return False

    @property
    def says_losses(self) -> bool:
        """True if the report contains its own losses and the user sees it."""
        return self.output in (None, "-") and self.format.says_losses

    def of_report(self, stream: BinaryIO) -> ReportOptions:
        """Return the options of a report whose text goes to ``stream``."""
        folding = Folding(self.lines, self.threads, self.states, self.reverse)
        # A file contains UTF-8, uncut names, and no colors.
        is_screen = stream is _bytes_of(sys.stdout)
        style = Style.for_stream(sys.stdout) if is_screen else Style(is_whole=True)
        by_total = self.sort == "total"
        return ReportOptions(folding, self.title, style, self.rows, by_total)


Reporting = TypeVar("Reporting", bound=ReportingOptions)


def settled(options: Reporting, default: str) -> Reporting:
    """Choose the format: ``--format``, else the extension of ``-o``, else the default.

    Raises:
        UsageError: The options do not apply to the format.
        RbtraceError: The format needs a file that cannot be written.
    """
    chosen = options.format_ or format_of_file(options.output) or default
    options = replace(options, format_=chosen)
    if chosen in FORMATS:
        check_separate(options)
        if not options.format.is_text and not options.output:
            check_folder()
    return options


def check_separate(options: ReportingOptions) -> None:
    """Raise UsageError for --threads or --states of a summary, which has no stacks."""
    if options.format.is_summary and (options.threads or options.states):
        raise UsageError(
            "--threads and --states separate stacks, but a summary has none",
            "Use --format folded, or select in report with --thread and --state",
        )


def render(
    profile: Profile,
    options: ReportingOptions,
    stem: str,
    inputs: Iterable[str] = (),
    append: bool = False,
) -> None:
    """Write a profile in the format of ``--format`` to ``-o``.

    Args:
        profile: Counted samples.
        options: Options of the report.
        stem: Name without extension of the file for formats that are not text.
        inputs: Files that must not be overwritten.
        append: True to keep the content of the file.

    Raises:
        RbtraceError: The file cannot be written, or is one of ``inputs``.
    """
    chosen = options.format
    if not options.idle:
        profile = without_idle(profile)
    own_name = "" if chosen.is_text else stem + chosen.extension
    with destination(
        options.output, own_name, inputs, append, options.is_silent
    ) as file:
        chosen.render(profile, options.of_report(file), file)
    own = profile.counts.statistics
    if own.idle and not (options.is_silent or options.says_losses):
        say_note(idle_text(own.idle, own.unit))
    for path in () if options.says_losses else inputs:
        say_gaps(path, own)


def say_gaps(path: str, own: Statistics) -> None:
    """Print notes on what a recording lacks."""
    for gap in own.gaps():
        say_note(f"{path}: {gap}")


@contextmanager
def destination(
    output: str | None,
    own_name: str,
    inputs: Iterable[str] = (),
    append: bool = False,
    is_silent: bool = False,
) -> Iterator[BinaryIO]:
    """Yield the stream for bytes: ``-o``, ``own_name``, or standard output for neither.

    Args:
        output: Value of ``-o``, or None.
        own_name: Name of the file without ``-o``; empty for standard output.
        inputs: Files that must not be overwritten.
        append: True to keep the content of the file.
        is_silent: True to print only ``own_name``, not the name of every new file.

    Raises:
        RbtraceError: The file cannot be written, or ``own_name`` exists.
    """
    path = output or own_name
    if not path or path == "-":
        with _standard_output() as stream:
            yield stream
        return
    check_inputs(path, inputs)
    if not output and os.path.exists(path):
        raise RbtraceError(f"{path} already exists", "Name a file with -o")
    with create_bytes(path, append) as file:
        yield file
    if not output or (os.path.isfile(path) and not append and not is_silent):
        say_wrote(path)


def check_inputs(path: str, inputs: Iterable[str]) -> None:
    """Raise RbtraceError if ``path`` is one of the files that are read."""
    for taken in inputs:
        if os.path.exists(path) and os.path.samefile(path, taken):
            raise RbtraceError(
                f"{path} would be overwritten", "Name another file with -o"
            )


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    sys.stdout.flush()
    stream = _bytes_of(sys.stdout)
    if stream is not None:
        try:
            yield stream
            stream.flush()
        except OSError as error:
            if error.filename is not None:
                raise  # The error of an input file, not of the output.
            raise cannot_write(STANDARD_OUTPUT, error) from error
        return
    # A caller's own text stream has no underlying byte stream.
    kept = io.BytesIO()
    yield kept
    sys.stdout.write(kept.getvalue().decode("utf-8", "replace"))


def _bytes_of(stream: Any) -> BinaryIO | None:
    return getattr(stream, "buffer", None)
