"""Where a command's words go: standard output or a file, and the status line."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.status import status_line
from rbtrace_py.report.style import Style, can_move
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


_SECONDS_BETWEEN = 0.5


class Ticker:
    """One line on a terminal's standard error, rewritten while it goes on.

    what: what goes on, ending: what Ctrl-C does then
    quiet: seconds before it is shown at all

    It says nothing where standard error is no terminal, or one that cannot
    rewrite a line.
    """

    def __init__(
        self, what: str, ending: str = "shows the result", quiet: float = 0.0
    ) -> None:
        self._what = what
        self._ending = ending
        self._quiet = quiet
        self._shown = False
        self._last: float | None = None
        self._on = can_move(sys.stderr)

    def __call__(self, seconds: float) -> None:
        if not self._on or seconds < self._quiet:
            return
        now = time.monotonic()
        if self._last is not None and now - self._last < _SECONDS_BETWEEN:
            return
        self._last = now
        self._shown = True
        line = status_line(
            self._what, seconds, self._ending, Style.for_stream(sys.stderr)
        )
        sys.stderr.write(f"{_CLEAR}{line}")
        sys.stderr.flush()

    def mute(self) -> None:
        """Say nothing from now on."""
        self.clear()
        self._on = False

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = False

    def end(self) -> None:
        """Clear the line for what comes last, of a ^C that was typed there too."""
        self._shown = self._on
        self.clear()


def enter(stack: ExitStack, session: Session) -> None:
    """Attach, with a line about it while that has to wait for a probe."""
    ticker = ticker_for(session, f"waiting for {subject(session)}", "stops", quiet=1.0)
    session.on_wait = ticker
    try:
        stack.enter_context(session)
    finally:
        ticker.clear()


def subject(session: Session) -> str:
    """``shop:checkout in pid 123``: what a session is about."""
    pids = session.targets.pids
    where = f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    return f"{', '.join(session.words)} in {where}"


def ticker_for(
    session: Session, what: str, ending: str = "shows the result", quiet: float = 0.0
) -> Ticker:
    """None that is seen where a program of ours writes to the terminal itself."""
    ticker = Ticker(what, ending, quiet)
    if session.targets.command is not None:
        ticker.mute()
    return ticker


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
