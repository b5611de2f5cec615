"""Messages on standard error: errors, notes, and announcements."""

from __future__ import annotations

import sys
import textwrap

import click

from rbtrace_py.errors import FilterError, RbtraceError
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.pointer import pointed


def show_error(error: RbtraceError) -> None:
    """Print an error, the place in a filter where it is, and its hint."""
    style = Style.for_stream(sys.stderr)
    click.echo(wrapped(f"rbtrace-py: {error}", "", style), err=True)
    if isinstance(error, FilterError):
        for line in pointed(error.text, error.position, style):
            click.echo(line, err=True)
    for line in error.hint.splitlines():
        click.echo(wrapped(line, "  ", style), err=True)


def wrapped(line: str, margin: str, style: Style) -> str:
    """Return a line broken between words to fit the terminal, behind ``margin``."""
    return textwrap.fill(
        line,
        style.width - 1,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def say(text: str) -> None:
    """Announce an action before it happens."""
    columns = Style.for_stream(sys.stderr).width - 1
    lines = textwrap.wrap(f"rbtrace-py: {text}", columns, subsequent_indent="  ")
    click.echo("\n".join(lines), err=True)


def say_note(text: str) -> None:
    """Print a note. On a terminal, the line is broken to fit."""
    line = f"rbtrace-py: {text}"
    if sys.stderr.isatty():
        columns = Style.for_stream(sys.stderr).width - 1
        line = textwrap.fill(
            line, columns, subsequent_indent="  ", break_long_words=False
        )
    print(line, file=sys.stderr)


def say_wrote(path: str, more: str = "") -> None:
    """Print the path of a new file, without breaking the line."""
    click.echo(f"rbtrace-py: wrote {path}{more}", err=True)
