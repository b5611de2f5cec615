"""Start and end of a session as the user sees them: waiting, attached, ended."""

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
    """A source of notes to print once it is attached, a line each."""

    @property
    def notes(self) -> Sequence[str]: ...


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
