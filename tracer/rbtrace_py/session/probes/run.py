"""Running a grouped session until it is to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rbtrace_py.aggregate.results import Result
from rbtrace_py.session.limits import REFRESH_SECONDS, Limits

_COUNT_SECONDS = 0.05


class Counting(Protocol):
    """What ``run`` asks of a session, whatever counts for it."""

    @property
    def is_over(self) -> bool: ...
    def wait(self, seconds: float) -> None: ...
    def refresh(self) -> None: ...
    def detach(self) -> None: ...
    def snapshot(self) -> Result: ...


def run(
    session: Counting,
    limits: Limits,
    on_interval: Callable[[Result], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Let an entered session count; the whole answer.

    Ends at a limit, when all targets have ended, or when ``stop`` says so,
    which is asked every tenth of a second. ``on_interval`` gets what came in
    each interval, the last, shorter one too. ``on_tick`` gets the seconds
    since the start, some times a second.
    """
    before: Result | None = None
    for now in _ticks(session, limits, stop):
        if now is None:
            before = _report_interval(session, before, on_interval)
        elif on_tick is not None:
            on_tick(now)
    session.detach()
    whole = session.snapshot()
    if on_interval is not None and limits.interval:
        on_interval(whole if before is None else whole.minus(before))
    return whole


def _ticks(
    session: Counting, limits: Limits, stop: Callable[[], bool]
) -> Iterator[float | None]:
    """Yield the time, and None where an interval ends, until it is over."""
    start = time.monotonic()
    end = start + limits.duration if limits.duration is not None else None
    interval = limits.interval or 0.0
    due = start + interval if interval else None
    step = _COUNT_SECONDS if limits.count else REFRESH_SECONDS
    while not stop():
        now = time.monotonic()
        stops = [at for at in (end, due) if at is not None]
        session.wait(max(0.0, min([step, *(at - now for at in stops)])))
        now = time.monotonic()
        if end is not None and now >= end:
            return
        if due is not None and now >= due:
            yield None
            due += interval
        if limits.count and session.snapshot().count >= limits.count:
            return
        session.refresh()
        if session.is_over:
            return
        yield now - start


def _report_interval(
    session: Counting,
    before: Result | None,
    on_interval: Callable[[Result], None] | None,
) -> Result:
    now = session.snapshot()
    if on_interval is not None:
        on_interval(now if before is None else now.minus(before))
    return now
