"""A process that is exiting: it runs no more code, and has no memory."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import pytest

from processes import Target
from rbtrace_py.agent.place import connect, runs_no_ruby
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.detect import find_ruby

EXIT = {"x86_64": 60, "aarch64": 93}
ENDING = """
import ctypes, os, sys, threading
def live():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    print("ready", flush=True)
    sys.stdin.readline()
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""
"""The first thread ends before the others. Such a process looks in /proc as if it
were about to end."""


@pytest.fixture
def ending() -> Iterator[Process]:
    target = Target(sys.executable, "-c", ENDING, str(EXIT[platform.machine()]))
    try:
        with Process(target.pid) as process:
            yield process
    finally:
        target.close()


def test_errors_say_that_the_process_has_ended(ending: Process) -> None:
    """The error does not claim that it does not run Ruby, which is unknown by then."""
    assert ending.alive()
    assert ending.is_ending()
    assert mappings(ending) == []
    said = f"process {ending.pid} has ended"
    for ask in (connect, find_ruby):
        with pytest.raises(NoSuchTarget, match=f"^{said}$"):
            ask(ending)
    assert str(runs_no_ruby(ending)) == said
