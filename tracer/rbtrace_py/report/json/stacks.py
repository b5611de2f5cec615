"""Stack counts as JSON (docs/formats): frames, threads, and rows that name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rbtrace_py.aggregate.calls import Thread
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import COUNTERS
from rbtrace_py.aggregate.stacks import Row
from rbtrace_py.aggregate.switches import CpuTimes, State
from rbtrace_py.model.stacks import Frame, RubyThread
from rbtrace_py.report.json.serializer import Document, fields, head


def stacks_document(profile: Profile) -> Document:
    """Return the document of ``stacks``.

    A row lists the indices of its frames, the root first.
    """
    frames: dict[Frame, int] = {}
    threads: dict[RubyThread, int] = {}
    rows = [_row(row, frames, threads) for row in profile.counts.rows()]
    own = profile.counts.statistics
    meta = profile.meta
    found: Document = {
        **head("stacks"),
        "pids": meta.pids or sorted({thread.pid for thread in threads}),
        "mode": meta.mode,
        **({"event": meta.event} if meta.event else {}),
        **({"argument": meta.argument} if meta.argument else {}),
        "engine": meta.engine,
        **fields(own, "unit", "rate", "started_ns", "ended_ns"),
        "weight": profile.counts.weight,
        "one_cpu": profile.one_cpu,
        "frames": [
            fields(frame, "kind", "name", "label", "path", "line") for frame in frames
        ],
        "threads": [
            fields(thread, "pid", "tid", "name", "ractor", "is_main")
            for thread in threads
        ],
        "stacks": rows,
        "counters": fields(own, *COUNTERS),
        "lost": own.failed,
    }
    if own.deleted:
        found["deleted"] = own.deleted
    if own.incomplete is not None:
        found["incomplete"] = asdict(own.incomplete)
    if profile.cpu is not None:
        found["cpu"] = _cpu(profile.cpu, profile.names)
        found["switches_lost"] = profile.cpu.lost
    return found


def _row(
    row: Row, frames: dict[Frame, int], threads: dict[RubyThread, int]
) -> Document:
    return {
        "thread": threads.setdefault(row.thread, len(threads)),
        "state": row.state,
        "frames": [frames.setdefault(frame, len(frames)) for frame in row.frames],
        "weight": row.weight,
    }


def _cpu(times: CpuTimes, names: Mapping[Thread, str]) -> list[Document]:
    """Return one document per thread, with times in nanoseconds."""
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
        for thread, own in times.by_running_time()
    ]
