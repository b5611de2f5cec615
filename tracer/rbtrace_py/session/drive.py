"""The one driver of all sessions: duration, count, intervals, progress, the end."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

from rbtrace_py.session.limits import REFRESH_SECONDS, Limits

EARLY_SECONDS = 0.02
"""How much sooner than it has to a session may return: not to wake up twice."""


class Session(Protocol):
    """A session that was entered, as ``drive`` needs it, whatever it looks at."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Have all targets ended?"""

    @property
    @abstractmethod
    def seen(self) -> int:
        """The number so far of what ``Limits.count`` limits."""

    @abstractmethod
    def advance(self, until: float, most: int | None) -> None:
        """Work, or wait for work, until a time of the monotonic clock, in seconds.

        Returns sooner, too: once ``most`` was seen, where it is over, or up to
        EARLY_SECONDS before ``until``.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Keep up with what comes and goes; about every REFRESH_SECONDS."""

    @abstractmethod
    def finish(self) -> None:
        """Stop. What was seen can still be read."""


def drive(
    session: Session,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    on_tick: Callable[[float], object] = lambda seconds: None,
    on_interval: Callable[[], object] = lambda: None,
) -> None:
    """Let a session work until a limit, the targets' end, or ``stop``; finish it.

    stop: asked some ten times a second, as ``on_tick`` gets the seconds so far
    on_interval: called where an interval ends, the last, shorter one too
    """
    for _ in turns(session, limits, stop, on_tick, on_interval):
        pass


def turns(
    session: Session,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    on_tick: Callable[[float], object] = lambda seconds: None,
    on_interval: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Do what ``drive`` does, one turn at a time.

    Yields after each turn, and once more at the end, so that a caller that is itself
    an iterator can hand on what has come.
    """
    start = time.monotonic()
    refresh = start + REFRESH_SECONDS
    end = math.inf if limits.duration is None else start + limits.duration
    interval = limits.interval or math.inf
    due = start + interval
    while not stop() and not _is_over(session):
        session.advance(min(refresh, end, due), limits.count)
        now = time.monotonic()
        if now >= refresh - EARLY_SECONDS:
            session.refresh()
            refresh = now + REFRESH_SECONDS
            on_tick(now - start)
        if now >= end or (limits.count and session.seen >= limits.count):
            break
        if now >= due:
            due += interval
            on_interval()
        yield
    session.finish()
    if limits.interval:
        on_interval()
    yield


def _is_over(session: Session) -> bool:
    """Processes that have ended may have left children, which are found first."""
    if session.is_over:
        session.refresh()
    return session.is_over
