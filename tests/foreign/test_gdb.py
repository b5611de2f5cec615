"""gdb's `info probes`, on a process that keeps running."""

import os
import re
import signal

import pytest

from .tools import Target, need, need_root, run

pytestmark = pytest.mark.root


def info_probes(pid: int) -> list[tuple[str, str, str]]:
    """Return the provider, name, and object of each of our probes."""
    need_root()
    gdb = need("gdb")
    output = run(
        gdb, "-nx", "-batch", "-p", str(pid), "-ex", "info probes stap shop", LC_ALL="C"
    )
    row = r"(?:stap +)?(shop) +(\w+) +0x\w+ +(/proc/\S+)"
    return sorted(re.findall(row, output))


def names(pid: int) -> list[str]:
    return [name for _, name, _ in info_probes(pid)]


def test_probes(target: Target) -> None:
    target.tell("define shop checkout 3")
    target.tell("define shop twelve 12")
    found = info_probes(target.pid)
    assert [name for _, name, _ in found] == ["checkout", "twelve"]
    (image,) = target.images()
    assert {os.path.normpath(path) for _, _, path in found} == {image}
    target.tell("fire checkout 1")


def test_a_forked_child(target: Target) -> None:
    target.tell("define shop before 1")
    child = target.fork()
    target.tell("define shop in_child 1")
    found = info_probes(child)
    assert [name for _, name, _ in found] == ["before", "in_child"]
    assert all(f"/{child}/fd/" in path for _, _, path in found)
    assert names(target.pid) == ["before"]
    assert target.ask("exit") == "parent"
    target.tell("define shop in_parent 1")
    assert names(target.pid) == ["before", "in_parent"]


def test_a_child_whose_parent_is_gone(target: Target) -> None:
    target.tell("define shop before 1")
    child = target.fork()
    os.kill(target.pid, signal.SIGKILL)
    target.process.wait()
    target.tell("define shop in_child 1")
    assert names(child) == ["before", "in_child"]
