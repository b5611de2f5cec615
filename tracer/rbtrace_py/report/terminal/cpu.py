"""On-CPU times of each thread: as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.switches import CpuTimes, State, ThreadTimes
from rbtrace_py.report import units
from rbtrace_py.report.exchange.rows import clean
from rbtrace_py.report.json.results import Document
from rbtrace_py.report.style import Style

_MOST_THREADS = 20
"""That the table shows: those with the most time on CPUs."""
_ASLEEP = (State.SLEEPING, State.DISK, State.STOPPED)


def cpu_lines(
    times: CpuTimes, names: Mapping[Thread, str], style: Style
) -> Iterator[str]:
    """``on CPU  runnable  sleeping  intervals  thread``."""
    threads = _in_order(times)
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


def cpu_documents(times: CpuTimes, names: Mapping[Thread, str]) -> list[Document]:
    """One a thread; times in nanoseconds."""
    return [
        {
            "pid": thread[0],
            "tid": thread[1],
            "name": names.get(thread, ""),
            "running_ns": own.ns[State.RUNNING],
            "runnable_ns": own.ns[State.RUNNABLE],
            "sleeping_ns": own.ns[State.SLEEPING],
            "disk_ns": own.ns[State.DISK],
            "stopped_ns": own.ns[State.STOPPED],
            "turns": own.intervals,
        }
        for thread, own in _in_order(times)
    ]


def _in_order(times: CpuTimes) -> list[tuple[Thread, ThreadTimes]]:
    """Return the threads, the one that ran longest first."""
    found = times.threads.items()
    return sorted(found, key=lambda each: (-each[1].ns[State.RUNNING], each[0]))
