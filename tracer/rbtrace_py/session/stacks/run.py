"""Letting a sampling session go on until it is to end."""

from __future__ import annotations

import time
from collections.abc import Callable

from rbtrace_py.session.limits import Limits
from rbtrace_py.session.stacks.sample_timer import SampleTimer
from rbtrace_py.session.stacks.sampling import Add, Sampling

LOOK_SECONDS = 0.1
"""How often threads, children, ends and the wish to stop are looked for."""


def run(
    sampling: Sampling,
    add: Add,
    limits: Limits,
    on_interval: Callable[[], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Sample with an entered session until a limit, all targets' end, or ``stop``.

    add: gets each sample; on_interval: called where an interval ends, the last,
    shorter one too; on_tick: gets the seconds since the start, ten times a second
    """
    beat = SampleTimer(sampling.options.rate, sampling.statistics)
    clock = time.monotonic_ns
    start = clock()
    end = _after(start, limits.duration)
    interval = _after(0, limits.interval)
    due = start + interval if interval else None
    step = int(LOOK_SECONDS * 1e9)
    look = start + step
    while not stop() and not sampling.is_over:
        # A look goes with a round, if one comes soon, so as not to wake up twice.
        until = min(at for at in (look + step // 2, end, due) if at is not None)
        while beat.wait(until):
            sampling.round(add)
            if limits.count and sampling.statistics.samples >= limits.count:
                break
            if beat.began >= look:
                break
        now = clock()
        if now >= look:
            sampling.look()
            look = now + step
            if on_tick is not None:
                on_tick((now - start) / 1e9)
        if end is not None and now >= end:
            break
        if limits.count and sampling.statistics.samples >= limits.count:
            break
        if due is not None and now >= due:
            due += interval or 0
            sampling.statistics.ended_ns = time.time_ns()
            if on_interval is not None:
                on_interval()
    sampling.look()
    if on_interval is not None and limits.interval:
        on_interval()


def _after(start: int, seconds: float | None) -> int | None:
    return None if seconds is None else start + int(seconds * 1e9)
