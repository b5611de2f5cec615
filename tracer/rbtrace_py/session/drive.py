"""The driver of all sessions: duration, count, intervals, progress, and the end."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

from rbtrace_py.session.limits import REFRESH_SECONDS, Limits

EARLY_SECONDS = 0.02
"""Seconds by which ``advance`` may return early, to avoid a second wakeup."""


class Session(Protocol):
    """An entered session of any kind, for ``drive``."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True if all targets have exited."""

    @property
    @abstractmethod
    def seen(self) -> int:
        """Number of events so far, for ``Limits.count``."""

    @abstractmethod
    def advance(self, until: float, most: int | None) -> None:
        """Work, or wait for work.

        Args:
            until: End time of the monotonic clock, in seconds. The session may return
                up to EARLY_SECONDS before.
            most: Return once this many events were seen; None: no limit.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Update processes and probes, about every REFRESH_SECONDS."""

    @abstractmethod
    def finish(self) -> None:
        """Stop the session; results can still be read."""


def drive(
    session: Session,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    on_tick: Callable[[float], object] = lambda seconds: None,
    on_interval: Callable[[], object] = lambda: None,
) -> None:
    """Run a session until a limit, the targets' end, or ``stop``; then finish it.

    Args:
        session: The entered session.
        limits: Its limits.
        stop: Called before each step; True ends the session.
        on_tick: Called about ten times per second, with the seconds so far.
        on_interval: Called at the end of each interval, including the last, shorter
            one.
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
    """Run a session like ``drive``, step by step.

    Yields after each step, and once more at the end, so that a caller that is an
    iterator itself can pass on new events.
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
    """Return whether it is over; ended processes may have children to find first."""
    if session.is_over:
        session.refresh()
    return session.is_over
