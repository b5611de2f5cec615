"""While a process is stopped, nothing is done that could have been done before.

The process also waits for everything that a tracer begins in that time: the import of a
module, a file, a collection of the tracer's garbage, or a wait for a CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from injecting import LIMIT, Bell, bell, injected, ring

from rbtrace_py.agent import inject
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace import scheduling
from rbtrace_py.linux.ptrace.pause import paused
from rubies import EACH

__all__ = ["bell"]

STOPPED = Path(__file__).with_name("stopped.py")


@pytest.fixture
def real_time(root: None) -> None:
    """A control group without real-time scheduling (cpu.rt_runtime_us) refuses root."""
    pid = os.fork()
    if not pid:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except PermissionError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        pytest.skip("the control group allows no real-time scheduling")


@pytest.mark.usefixtures("real_time")
@pytest.mark.parametrize("kind", ["ruby", "sleep"])
def test_nothing_is_prepared_while_it_is_stopped(kind: str) -> None:
    """In a new process, as a module is imported once only."""
    with injected(kind) as target:
        done = subprocess.run(
            [sys.executable, str(STOPPED), str(target.pid)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        assert target.end() == "right"
    found: dict[str, Any] = json.loads(done.stdout)
    # The stopper reads whether it runs the same program. If it does not stop within a
    # millisecond, the stopper reads whether it still lives. Python 3.13 audits the
    # pauses between its polls.
    allowed = {"open auxv", f"open task/{target.pid}/stat", "time.sleep 2e-05"}
    others = {e for e in found["events"] if not e.startswith("ctypes.")} - allowed
    assert others == set()
    assert found["collections"] == 0
    assert found["classes"] == [os.SCHED_RR | os.SCHED_RESET_ON_FORK]
    assert found["later"] == [os.SCHED_OTHER, True]


def test_without_the_right_it_hurries_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def refused(name: str) -> Any:
        def call(*arguments: object) -> None:
            asked.append(name)
            raise PermissionError(name)

        return call

    for name in ("sched_setscheduler", "setpriority"):
        monkeypatch.setattr(os, name, refused(name))
    thread = threading.Thread(target=scheduling.hurry)
    thread.start()
    thread.join()
    assert asked == ["sched_setscheduler", "setpriority"]


@pytest.mark.usefixtures("real_time")
def test_a_real_time_class_of_the_user_stays() -> None:
    found: list[tuple[int, int]] = []

    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(7))
        scheduling.hurry()
        priority = os.sched_getparam(0).sched_priority
        found.append((os.sched_getscheduler(0), priority))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(os.SCHED_FIFO, 7)]


@pytest.mark.usefixtures("real_time")
def test_what_pauses_a_process_hurries_too() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        with Process(child.pid) as process, paused(process, 10):
            threads = threading.enumerate()
            (ours,) = [one for one in threads if one.name == "rbtrace-pause"]
            policy = os.sched_getscheduler(ours.native_id or 0)
    finally:
        child.kill()
        child.wait()
    assert policy == os.SCHED_RR | os.SCHED_RESET_ON_FORK


@pytest.mark.parametrize("ruby", EACH)
@pytest.mark.parametrize("kind", ["sleep", "queue", "gets"])
def test_a_sleeping_target_answers_without_a_later_attempt(
    kind: str, ruby: str, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ruby 2.7 announces a job to the thread that ran last, not to the sleeper."""
    monkeypatch.setattr(inject, "_FIRST_WAIT", 2 * LIMIT)
    with injected(kind, ruby=ruby) as target:
        assert ring(target.pid, bell, LIMIT).attempts <= 2
        assert target.end() == "right"
