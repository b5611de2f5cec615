"""Waiting for a process that does not answer: it costs little CPU.

The tests count the polls. A slow machine makes fewer of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from injecting import injected

from rbtrace_py.agent.detour import Busy
from rbtrace_py.agent.inject import NotAcknowledged, inject
from rbtrace_py.agent.loading import LoaderLinks
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.tracee import Tracee
from rbtrace_py.linux.ptrace.tracing_thread import in_a_thread
from rbtrace_py.session.inside.injection import ruby_addresses

SECONDS = 0.5


def calls_of(work: Callable[[], None]) -> Counter[str]:
    """Run ``work`` and count the functions in C that it calls, by name."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call":
            found[getattr(function, "__name__", "")] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.usefixtures("root")
def test_for_a_stop() -> None:
    """The process may be frozen (docker pause), or deep in the kernel."""
    with injected("gets") as target, Process(target.pid) as process:

        def wait() -> None:
            tracee = Tracee(process)  # nothing asks it to stop
            assert tracee.wait(time.monotonic() + SECONDS) is None

        assert 2 < in_a_thread(lambda: calls_of(wait))["waitid"] < 500


def test_for_the_end_of_loading(tmp_path: Path) -> None:
    """Loading takes long if busy threads keep the GVL."""
    with (
        Process(os.getpid()) as process,
        LoaderLinks(process, str(tmp_path), process.program) as said,
    ):

        def wait() -> None:
            with pytest.raises(NotAcknowledged):
                said.await_end(time.monotonic() + SECONDS)

        found = calls_of(wait)
    assert 2 < found["stat"] < 150
    assert found["open"] < 150


@pytest.mark.usefixtures("root")
def test_for_a_thread_that_can_be_redirected() -> None:
    """Each attempt stops the process, so attempts become rare."""
    attempts = 0

    def at(step: str) -> None:
        nonlocal attempts
        attempts += 1
        raise Busy(f"cannot redirect it when it is {step}")

    with injected("gets") as target, Process(target.pid) as process:
        ruby = ruby_addresses(process)
        with pytest.raises(Busy):
            inject(process, ruby, b"nil", lambda: False, SECONDS, at)
        assert target.end() == "right"
    assert 2 < attempts < 20
