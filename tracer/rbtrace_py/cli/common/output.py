"""Destination of a command's output: standard output or a file, and the status line."""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import click

from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.style import Style, can_move
from rbtrace_py.report.terminal.status import status_line

if TYPE_CHECKING:
    from rbtrace_py.session.targets.targets import Targets

STANDARD_OUTPUT = "standard output"
READY_FD = f"{__name__}.ready_fd"
"""The number of --ready-fd in click's ``Context.meta``."""


class HasNotes(Protocol):
    """A source of notes to print once it is attached, a line each."""

    @property
    def notes(self) -> Sequence[str]: ...


class HasTargets(Protocol):
    """A session of these."""

    targets: Targets


class StartableSession(HasTargets, Protocol):
    """A session that may wait for agents as it begins."""

    on_wait: Callable[[float], None] | None

    def start(self, stop: Callable[[], bool]) -> None: ...


class ProbingSession(HasNotes, HasTargets, Protocol):
    """A session that is entered to attach it."""

    words: tuple[str, ...]
    on_wait: Callable[[float], None] | None

    def __enter__(self) -> Any: ...
    def __exit__(self, *exception: Any) -> None: ...


class Output:
    """A stream and how to write on it; every line is flushed when it is done.

    Raises RbtraceError, which names it, where it cannot be written to, as on a
    full disk; BrokenPipeError where nobody reads it any more.
    """

    def __init__(self, stream: TextIO, name: str = STANDARD_OUTPUT) -> None:
        self.stream = stream
        self.name = name
        self.style = Style.for_stream(stream)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line + "\n")
        self.flush()

    def write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except OSError as error:
            raise cannot_write(self.name, error) from error

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise cannot_write(self.name, error) from error


@contextmanager
def opened(path: str | None, append: bool = False) -> Iterator[Output]:
    """Standard output, or the file of ``-o``; append: behind what is in it."""
    if path is None or path == "-":
        # Bytes of a target that are no text must not end the report.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        yield Output(sys.stdout)
        return
    with create(path, "utf-8", append) as file:
        yield Output(file, path)


def create(path: str, encoding: str, append: bool = False) -> TextIO:
    """Open a file of the user's for writing text; raises as create_bytes does."""
    return io.TextIOWrapper(create_bytes(path, append), encoding, errors="replace")


def create_bytes(path: str, append: bool = False) -> io.BufferedWriter:
    """Open a file of the user's for writing; append: keep what is in it.

    Raises RbtraceError, with its name, if it cannot be, and so does whatever
    writes to it or closes it.
    """
    try:
        return io.BufferedWriter(_UserFile(path, "a" if append else "w"))
    except OSError as error:
        raise cannot_write(path, error) from error


class _UserFile(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise cannot_write(str(self.name), error) from error


def cannot_write(name: str, error: OSError) -> Exception:
    """Return the exception to raise for an error of writing."""
    if isinstance(error, BrokenPipeError):
        return error
    to = "to " if name == STANDARD_OUTPUT else ""
    return RbtraceError(f"cannot write {to}{name}: {error.strerror}")


def is_pipe(stream: TextIO) -> bool:
    """Does somebody read it who may have seen enough before its end?"""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


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
        self.is_on = can_move(sys.stderr)

    def __call__(self, seconds: float) -> None:
        if not self.is_on or seconds < self._quiet:
            return
        now = time.monotonic()
        if self._last is not None and now - self._last < _SECONDS_BETWEEN:
            return
        self._last = now
        self._shown = True
        line = status_line(
            self._what, seconds, self._ending, Style.for_stream(sys.stderr)
        )
        self._write(f"{_CLEAR}{line}")

    def say(self, what: str, seconds: float) -> None:
        """The same with something new that goes on."""
        self._what = what
        self(seconds)

    def mute(self) -> None:
        """Say nothing from now on."""
        self.clear()
        self.is_on = False

    def clear(self) -> None:
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # The terminal hung up; the result may still go to a file.
            self.is_on = False

    def end(self) -> None:
        """Clear the line for what comes last, of a ^C that was typed there too."""
        self._shown = self.is_on
        self.clear()


def enter(stack: ExitStack, session: ProbingSession) -> None:
    """Attach, with a line about it while that has to wait for a probe."""
    ticker = ticker_for(session, f"waiting for {subject(session)}", "stops", quiet=1.0)
    session.on_wait = ticker
    try:
        stack.enter_context(session)
    finally:
        ticker.clear()


def start(session: StartableSession, stop: Callable[[], bool]) -> None:
    """Have it begin, with a line about it while that has to wait for an agent."""
    what = f"waiting for an agent in {where(session.targets)}"
    ticker = ticker_for(session, what, "stops", quiet=1.0)
    session.on_wait = ticker
    try:
        session.start(stop)
    finally:
        ticker.clear()


def subject(session: ProbingSession) -> str:
    """``shop:checkout in pid 123``: what a session is about."""
    words = ", ".join(session.words)
    if session.targets.command is not None:
        return f"{words} in {session.targets.command[0]}"
    return f"{words} in {where(session.targets)}"


def where(targets: Targets) -> str:
    """``pid 123``, or how many."""
    return processes_text(targets.pids)


def processes_text(pids: Sequence[int]) -> str:
    """``pid 123``, or how many."""
    return f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"


def ticker_for(
    session: HasTargets,
    what: str,
    ending: str = "shows the result",
    quiet: float = 0.0,
) -> Ticker:
    """None that is seen where a program of ours writes to the terminal itself."""
    ticker = Ticker(what, ending, quiet)
    if session.targets.command is not None:
        ticker.mute()
    return ticker


def say_ended(targets: Targets) -> None:
    """Say that a session ended as they did; of a program of ours its status is said.

    Nothing is said where one lives on: its agent has hung up, or it is replaced.
    """
    pids = targets.pids
    if targets.command is None and not targets.alive():
        one = f"process {pids[0]} has ended"
        say_note(one if len(pids) == 1 else f"{len(pids)} processes have ended")


def attached(session: HasNotes) -> None:
    """Print the notes of a session that is attached, and report that it is.

    A script learns it from the descriptor of --ready-fd, or from a line on standard
    error.
    """
    for note in session.notes:
        say_note(note)
    context = click.get_current_context(silent=True)
    number = context.meta.get(READY_FD) if context else None
    if number is None:
        if not sys.stderr.isatty():
            say_note("tracing")
        return
    with suppress(OSError):
        os.write(number, b"attached\n")
        os.close(number)
