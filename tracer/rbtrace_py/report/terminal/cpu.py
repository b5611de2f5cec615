"""Table of each thread's on-CPU times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.switches import CpuTimes, State
from rbtrace_py.report import units
from rbtrace_py.report.exchange.rows import clean
from rbtrace_py.report.style import Style

_MOST_THREADS = 20
"""That the table shows: those with the most time on CPUs."""
_ASLEEP = (State.SLEEPING, State.DISK, State.STOPPED)


def cpu_lines(
    times: CpuTimes, names: Mapping[Thread, str], style: Style
) -> Iterator[str]:
    """``on CPU  runnable  sleeping  intervals  thread``."""
    threads = times.by_running_time()
    yield style.dim(
        f"{'on CPU':>9}  {'runnable':>9}  {'sleeping':>9}  {'intervals':>9}  thread"
    )
    for thread, own in threads[:_MOST_THREADS]:
        asleep = sum(own.ns[state] for state in _ASLEEP)
        shown = (own.ns[State.RUNNING], own.ns[State.RUNNABLE], asleep)
        cells = [units.duration(ns, style) for ns in shown] + [
            units.format_count(own.intervals)
        ]
        name = clean(names.get(thread) or "thread")
        row = "  ".join(f"{cell:>9}" for cell in cells)
        yield f"{row}  {name} {thread[1]}"
    if len(threads) > _MOST_THREADS:
        yield style.dim(f"and {units.format_count(len(threads) - _MOST_THREADS)} more")
    if times.lost:
        one = "1 context switch was" if times.lost == 1 else ""
        text = one or f"{units.format_count(times.lost)} context switches were"
        yield style.red(f"  {text} lost: times are lower bounds")
