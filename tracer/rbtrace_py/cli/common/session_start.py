"""Messages about the beginning and the end of a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

import click

from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.ticker import HasTargets, ticker_for

if TYPE_CHECKING:
    from rbtrace_py.session.targets.targets import Targets

READY_FD = f"{__name__}.ready_fd"
"""The number of --ready-fd in click's ``Context.meta``."""


class HasNotes(Protocol):
    """A session with notes to print when it is attached, one per line."""

    @property
    def notes(self) -> Sequence[str]: ...


class StartingSession(HasTargets, Protocol):
    """A session that attaches when it is entered."""

    on_wait: Callable[[float], None] | None

    def __enter__(self) -> Any: ...
    def __exit__(self, *exception: Any) -> None: ...


class ProbingSession(HasTargets, Protocol):
    """A session of probes, or of our words."""

    words: tuple[str, ...]


def enter(stack: ExitStack, session: StartingSession, what: str) -> None:
    """Attach a session; show a status line while it waits for ``what``."""
    ticker = ticker_for(session, f"waiting for {what}", "stops", quiet=1.0)
    session.on_wait = ticker
    try:
        stack.enter_context(session)
    finally:
        ticker.clear()


def subject(session: ProbingSession) -> str:
    """Describe a session by words and targets: ``shop:checkout in pid 123``."""
    words = ", ".join(session.words)
    if session.targets.command is not None:
        return f"{words} in {session.targets.command[0]}"
    return f"{words} in {where(session.targets)}"


def where(targets: Targets) -> str:
    """Describe targets: ``pid 123`` or ``2 processes``."""
    return processes_text(targets.pids)


def processes_text(pids: Sequence[int]) -> str:
    """Describe processes: ``pid 123`` or ``2 processes``."""
    return f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"


def say_ended(targets: Targets) -> None:
    """Print a note if a session ended because all its targets exited.

    A COMMAND gets no note, because its exit status is reported. A session can also end
    while a process runs: if its agent hangs up, or exec replaces the program.
    """
    pids = targets.pids
    if targets.command is None and not targets.alive():
        one = f"process {pids[0]} has ended"
        say_note(one if len(pids) == 1 else f"{len(pids)} processes have ended")


def attached(session: HasNotes) -> None:
    """Print the notes of a session, and report that it is attached.

    For scripts, the report is a line to the descriptor of --ready-fd, or else to
    standard error.
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
