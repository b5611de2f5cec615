"""Where a command's words go: standard output or a file, and the status line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.style import Style
from rbtrace_py.session.base import Session


class Output:
    """A stream and how to write on it; every line is flushed when it is done."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.style = Style.for_stream(stream)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stream.write(line + "\n")
        self.stream.flush()


@contextmanager
def opened(path: str | None) -> Iterator[Output]:
    """Standard output, or the file of ``-o``."""
    if path is None or path == "-":
        # Bytes of a target that are no text must not end the report.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        yield Output(sys.stdout)
        return
    with create(path, "utf-8") as file:
        yield Output(file)


def create(path: str, encoding: str) -> TextIO:
    """Open a file of the user's for writing; RbtraceError if it cannot be."""
    try:
        return Path(path).open("w", encoding=encoding, errors="replace")
    except OSError as error:
        raise RbtraceError(f"cannot write {path}: {error.strerror}") from error


_CLEAR = "\r\x1b[2K"
"""To the line's beginning, and empty it, with the ^C that was typed there."""


class Ticker:
    """One line on a terminal's standard error, rewritten while it goes on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False
        self._last = -1.0
        self._on = sys.stderr.isatty()

    def __call__(self, seconds: float) -> None:
        if not self._on or seconds - self._last < 0.5:
            return
        self._last = seconds
        self._shown = True
        text = f"{self._what} for {seconds:.0f} s; Ctrl-C ends it and shows the result"
        sys.stderr.write(f"{_CLEAR}{text[:77]}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = False


def attached(session: Session) -> None:
    """Say what is worth saying once a session is attached.

    A program that drives this one learns of it on the descriptor that
    RBTRACE_READY_FD names.
    """
    for note in session.notes:
        print(f"rbtrace-py: {note}", file=sys.stderr)
    number = os.environ.get("RBTRACE_READY_FD", "")
    if number.isdigit():
        try:
            os.write(int(number), b"attached\n")
            os.close(int(number))
        except OSError:
            return
