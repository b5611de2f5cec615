"""Sessions that pass each event to a sink as it happens."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.session.drive import Session, turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.targets.notes import Notes

BATCH = 1000
"""Maximum number of events per step. Between steps, the driver checks its limits."""

E = TypeVar("E")


class EventSession(Closing, Session, Generic[E]):
    """A session that passes each event to ``sink``.

    Attributes:
        notes: Notes for the user, one per line; more may follow until the end.
        sink: Takes an event, and returns the number that it adds to ``seen``.
    """

    notes: Notes
    sink: Callable[[E], int]
    _counted = 0
    _pending: Iterator[E] = iter(())
    """The events that ``events`` or ``drain`` returned, and that are not taken yet."""

    @abstractmethod
    def events(self, seconds: float) -> Iterator[E]:
        """Yield new events; wait up to ``seconds`` for the first."""

    @abstractmethod
    def drain(self) -> Iterator[E]:
        """Finish the session; yield earlier events."""

    @abstractmethod
    def result_counters(self) -> dict[str, int]:
        """Return the counters of a result by their names in docs/formats."""

    @property
    def failure(self) -> RbtraceError | None:
        """The error that ended tracing early, or None."""
        return None

    @property
    def seen(self) -> int:
        return self._counted

    def advance(self, until: float, most: int | None) -> None:
        if not self._take(most):
            self._pending = self.events(max(0.0, until - time.monotonic()))
            self._take(most)

    def collect(self, most: int | None) -> bool:
        """Pass on some of the events that precede ``finish``.

        Args:
            most: Return once this many events were seen; None: no limit.

        Returns:
            True if more events may follow.
        """
        if self._take(most):
            return True
        self._pending = self.drain()
        return self._take(most)

    def drop(self, is_lost: bool) -> None:
        """Finish the session; drop earlier events, as lost ones if ``is_lost``."""
        self.finish()

    def _take(self, most: int | None) -> bool:
        """Pass the next events to the sink; return whether there were any."""
        limit = most or sys.maxsize
        has_any = False
        for event in islice(self._pending, BATCH):
            has_any = True
            self._counted = min(self._counted + self.sink(event), limit)
            if self._counted == limit:
                break
        return has_any


def event_turns(
    session: EventSession[Any],
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    on_tick: Callable[[float], object] = lambda seconds: None,
) -> Iterator[bool]:
    """Drive a session of events step by step, and collect the events before its end.

    Args:
        session: The entered session, with a sink.
        limits: As for ``drive``, like ``stop`` and ``on_tick``.

    Yields:
        True after each step; then False, once the session has finished and after each
        step that collects earlier events.
    """
    for _ in turns(session, limits, stop, on_tick):
        yield True
    yield False
    while session.seen != limits.count and session.collect(limits.count):
        yield False
