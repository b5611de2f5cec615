"""Lists of processes: children, and matches of a regular expression."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest
from linux_targets import running

from rbtrace_py.errors import UsageError
from rbtrace_py.linux import processes as module
from rbtrace_py.linux.process import split_cmdline
from rbtrace_py.linux.processes import children, descendants, find_by_cmdline

TREE = """
import subprocess, sys
child = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"],
                         stdout=subprocess.PIPE, text=True)
print("ready", child.pid, child.stdout.readline(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("has_file", [True, False])
def test_descendants(monkeypatch: pytest.MonkeyPatch, has_file: bool) -> None:
    if not has_file:
        monkeypatch.setattr(module, "_has_children_file", lambda: False)
    with running(sys.executable, "-c", TREE) as popen:
        words = popen.ready_line.split()  # type: ignore[attr-defined]
        child, grandchild = int(words[1]), int(words[2])
        assert children(popen.pid) == [child]
        assert descendants(popen.pid) == [child, grandchild]
        assert popen.pid in children(os.getpid())
        os.kill(grandchild, 9)
    assert children(popen.pid) == []
    assert descendants(popen.pid) == []


def test_found_by_command_line(target: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    assert find_by_cmdline(marker) == []
    with running(target, marker, "\x1b[31m") as popen:
        (found,) = find_by_cmdline(f"target.*{marker}")
        assert found.pid == popen.pid
        assert found.comm == "target"
        assert found.cmdline.endswith(f"{marker} \\x1b[31m")


def test_we_and_what_started_us_are_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = split_cmdline(Path("/proc/self/cmdline").read_bytes())
    monkeypatch.setattr(sys, "argv", ["x", *ours[-2:]])
    assert os.getpid() not in [found.pid for found in find_by_cmdline("")]
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    monkeypatch.setattr(sys, "argv", ["x", *split_cmdline(parent)[-1:]])
    if parent:
        assert os.getppid() not in [found.pid for found in find_by_cmdline("")]


def test_a_bad_regex() -> None:
    with pytest.raises(UsageError, match="--ps"):
        find_by_cmdline("(")
