"""Context switches of real threads, against the kernel's own counts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from processes import TIMEOUT, Target, await_state
from rbtrace_py.aggregate.switches import CpuTimes, State, ThreadTimes
from rbtrace_py.bpf import context_switches as module
from rbtrace_py.bpf.context_switches import ContextSwitches
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import children
from rbtrace_py.model.switches import Switch, SwitchKind

pytestmark = pytest.mark.usefixtures("root")

PROGRAM = """
import sys, threading, time
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
print("ready", flush=True)
for line in sys.stdin:
    said = ""
    if line == "burn\\n": burn(0.2)
    if line == "nap\\n":
        for _ in range(100): time.sleep(0.001)
    if line == "thread\\n":
        thread = threading.Thread(target=burn, args=(0.05,))
        thread.start()
        thread.join()
        said = thread.native_id
    print("done", said, flush=True)
"""
BURN_NS, THREAD_NS = 200_000_000, 50_000_000


def near(cpu_ns: int) -> int:
    """Return how far the times of switches may be from the scheduler's own count.

    A thread's time begins when the scheduler starts to choose it. The switch is
    reported later, and a hypervisor may take the CPU in between.
    """
    return 5_000_000 + cpu_ns // 20


class Counted(NamedTuple):
    """A sleeping thread's first and third number in the kernel's schedstat."""

    cpu_ns: int
    intervals: int


@contextmanager
def program(*before: str) -> Iterator[Target]:
    target = Target(*before, sys.executable, "-c", PROGRAM)
    try:
        yield target
    finally:
        target.close()


def at_rest(pid: int) -> Counted:
    """Once the main thread waits for its next line."""
    await_state(pid, "S")
    task = Path(f"/proc/{pid}/task/{pid}")
    cpu, _, intervals = map(int, (task / "schedstat").read_text().split())
    return Counted(cpu, intervals)


def stolen_ns() -> int:
    """Return the time stolen from all CPUs, in ticks of 10 ms."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(ticks[place]) for place in (6, 7, 8)) * 10_000_000


def sums(found: list[Switch]) -> dict[tuple[int, int], ThreadTimes]:
    times = CpuTimes()
    for each in found:
        times.feed(each)
    times.end(max(each.time for each in found))
    return times.threads


def taken_until_ended(switches: ContextSwitches, tids: list[int]) -> list[Switch]:
    """Take all switches until the threads have left their CPUs and ended.

    join returns earlier: Python's part of the thread has ended by then, the kernel's
    has not.
    """
    found: list[Switch] = []
    left = set(tids)
    deadline = time.monotonic() + TIMEOUT
    while left:
        assert time.monotonic() < deadline, f"no end of the threads {left}"
        found += switches.take()
        left -= {each.tid for each in found if each.state == "X"}
    return found


@pytest.fixture
def switches() -> Iterator[ContextSwitches]:
    with ContextSwitches() as made:
        yield made


@pytest.mark.parametrize("is_given", [1, 0], ids=["as it is", "before 5.19"])
def test_as_the_kernel_counts(is_given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns on a CPU one by one; time on it less what was stolen; and no gap."""
    monkeypatch.setattr(module, "_WAYS", ({"STATE_GIVEN": is_given},))
    with (
        program() as target,
        program() as stranger,
        Process(target.pid) as process,
        ContextSwitches() as switches,
    ):
        before, stolen = at_rest(target.pid), stolen_ns()
        switches.watch(process)
        for word in ("burn", "nap", "burn"):
            stranger.tell("burn")
            target.step(word)
        after, stolen = at_rest(target.pid), stolen_ns() - stolen
        switches.forget(target.pid)
        target.step("burn")
        found = switches.take()
        assert switches.take() == []
    assert {each.pid for each in found} == {target.pid}
    ((thread, own),) = sums(found).items()
    assert thread == (target.pid, target.pid)
    assert own.intervals == after.intervals - before.intervals
    cpu_ns = after.cpu_ns - before.cpu_ns
    assert cpu_ns >= 2 * BURN_NS
    ran, off = own.ns[State.RUNNING], near(cpu_ns)
    assert cpu_ns - off <= ran <= cpu_ns + off + stolen + 20_000_000
    # 100 naps of a millisecond.
    assert own.ns[State.SLEEPING] >= 50_000_000
    assert (found[0].what, found[-1].what) == (SwitchKind.FOUND, SwitchKind.LEFT)
    assert sum(own.ns.values()) == found[-1].time - found[0].time


def test_times_are_those_of_the_clock(switches: ContextSwitches) -> None:
    """Switches between two readings of our own clock have times between them."""
    with program() as target, Process(target.pid) as process:
        at_rest(target.pid)
        switches.watch(process)
        before = time.monotonic_ns()
        target.step("burn")
        at_rest(target.pid)
        after = time.monotonic_ns()
        found = [s for s in switches.take() if s.what is not SwitchKind.FOUND]
    assert found
    offset = switches.wall_offset
    assert all(before <= each.time - offset <= after for each in found)
    (own,) = sums(found).values()
    assert BURN_NS - near(BURN_NS) <= own.ns[State.RUNNING] <= after - before


def test_threads_come_and_go(switches: ContextSwitches) -> None:
    with program() as target, Process(target.pid) as process:
        at_rest(target.pid)
        switches.watch(process)
        tids = [int(target.step("thread").split()[1]) for _ in range(3)]
        at_rest(target.pid)
        found = taken_until_ended(switches, tids)
    threads = sums(found)
    assert threads.keys() == {(target.pid, tid) for tid in (target.pid, *tids)}
    for tid in tids:
        own = [each for each in found if each.tid == tid]
        assert own[0].what in (SwitchKind.WOKEN, SwitchKind.ON)
        assert (own[-1].what, own[-1].state) == (SwitchKind.OFF, "X")
        running = threads[target.pid, tid].ns[State.RUNNING]
        assert running >= THREAD_NS - near(THREAD_NS)


def test_threads_in_another_pid_namespace(switches: ContextSwitches) -> None:
    """Records have the threads' IDs in their own namespace, even at their end."""
    with program("unshare", "--pid", "--fork", "--kill-child") as target:
        (pid,) = children(target.pid)
        with Process(pid) as process:
            at_rest(pid)
            switches.watch(process)
            tid = int(target.step("thread").split()[1])
            at_rest(pid)
            found = taken_until_ended(switches, [tid])
    assert tid < pid
    threads = sums(found)
    assert threads.keys() == {(pid, 1), (pid, tid)}
    assert threads[pid, tid].ns[State.RUNNING] >= THREAD_NS - near(THREAD_NS)
    (end,) = [each for each in found if each.state == "X"]
    assert end.tid == tid


def test_a_loss_is_told_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RING_SIZE", 4096)
    with (
        program() as target,
        Process(target.pid) as process,
        ContextSwitches() as switches,
    ):
        before = at_rest(target.pid)
        switches.watch(process)
        target.step("nap")
        intervals = at_rest(target.pid).intervals - before.intervals
        first = switches.take()
        target.step("idle")
        at_rest(target.pid)
        second = switches.take()
    *told, lost = first
    assert lost.what is SwitchKind.LOST
    assert all(each.what is not SwitchKind.LOST for each in told)
    # Each turn begins and ends.
    assert len(told) - 1 + lost.value >= 2 * intervals
    assert second
    assert all(each.what is not SwitchKind.LOST for each in second)
    assert second[0].time > lost.time


WITHOUT = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
# CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF: gone with the next exec.
for capability in (21, 38, 39): ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
code = '''
import sys
sys.path.insert(0, sys.argv[1])
from rbtrace_py.errors import NotPermitted
from rbtrace_py.bpf.context_switches import ContextSwitches
try: ContextSwitches()
except NotPermitted as error: print("refused:", error.hint)
'''
os.execv(sys.executable, [sys.executable, "-c", code, sys.argv[1]])
"""


def test_without_rights() -> None:
    tracer = str(Path(module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, tracer],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert "refused: Run as root" in done.stdout, done.stderr
