"""Each thread's time on a CPU, as text and as JSON."""

from __future__ import annotations

import json

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.aggregate.switches import CpuTimes
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.report.json.stacks import stacks_document
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.summary import summary_lines

NAMES = {(4, 70): "worker", (4, 71): "", (5, 71): "other"}


def profile(is_known: bool = True, threads: int = 2, lost: int = 0) -> Profile:
    """Thread 70 ran 2 ms and slept 8, each other one waited for 1 ms and ran 1."""
    times = CpuTimes()
    for tid in range(70, 70 + threads):
        times.feed(Switch(4, tid, 0, SwitchKind.WOKEN))
        start = 0 if tid == 70 else 1_000_000
        times.feed(Switch(4, tid, start, SwitchKind.ON))
        times.feed(Switch(4, tid, 2_000_000, SwitchKind.OFF, "S"))
    times.end(10_000_000)
    if lost:
        times.feed(Switch(0, 0, 10_000_000, SwitchKind.LOST, "", lost))
    statistics = Statistics("ns", counted="calls")
    cpu = times if is_known else None
    return Profile(StackCounts(statistics), cpu=cpu, names=NAMES)


def summary(shown: Profile) -> list[str]:
    return list(summary_lines(shown, ReportOptions()))


def test_summary() -> None:
    assert summary(profile())[2:-3] == [
        "   on CPU   runnable   sleeping  intervals  thread",
        "  2.00 ms       0 ns    8.00 ms          1  worker 70",
        "  1.00 ms    1.00 ms    8.00 ms          1  thread 71",
    ]
    assert not any("on CPU" in line for line in summary(profile(is_known=False)))
    lines = summary(profile(lost=3))
    assert "  3 context switches were lost: times are lower bounds" in lines
    assert "  1 context switch was lost: times are lower bounds" in summary(
        profile(lost=1)
    )
    assert "and 5 more" in summary(profile(threads=25))


def test_json() -> None:
    document = json.loads(json.dumps(stacks_document(profile(lost=3))))
    assert document["switches_lost"] == 3
    assert document["cpu"][0] == {
        "pid": 4,
        "tid": 70,
        "name": "worker",
        "running_ns": 2_000_000,
        "runnable_ns": 0,
        "sleeping_ns": 8_000_000,
        "disk_ns": 0,
        "stopped_ns": 0,
        "turns": 1,
    }
    assert [each["tid"] for each in document["cpu"]] == [70, 71]
    assert "cpu" not in stacks_document(profile(is_known=False))
