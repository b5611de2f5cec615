"""``shapesdump`` and ``fork``: a child's output, and a child itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rubies
from commands import run
from processes import Target
from rbtrace_py.linux.process import Process, parse_stat
from ruby_builds import EACH

Start = Callable[..., Target]


@contextmanager
def ended(pid: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    with rubies.running(name, "inside/agent.rb") as target:
        out, err, code = run("shapesdump", target.pid, path)
        document = json.loads(run("fork", target.pid, "--json")[0])
        check_copy(target.pid, document["copy"])
        assert target.target.step("on") == "done on"
    if rubies.minor(name) < "3.3":
        assert "cannot dump shapes: it needs 3.3" in " ".join(err.split())
        assert (out, code, list(tmp_path.iterdir())) == ("", 1, [])
    else:
        assert (out, code) == ("", 0)
        shapes = [json.loads(line) for line in path.read_text().splitlines()]
        assert {shape["type"] for shape in shapes} == {"SHAPE"}
        assert "@request" in {shape.get("edge_name") for shape in shapes}


def check_copy(pid: int, copy: int) -> None:
    with ended(copy), Process(copy) as process:
        stat = parse_stat(process.read("stat"))
        assert (stat.state, stat.parent) == ("T", pid)


def test_a_copy(start: Start) -> None:
    target = start("inside/agent.rb")
    out, err, code = run("fork", target.pid)
    with ended(int(out)):
        assert err.splitlines() == [
            f"rbtrace-py: process {int(out)} is a copy of {target.pid}, and stopped",
            f"  look at it  gdb -p {int(out)}, or gcore {int(out)}",
            f"  end it      kill -KILL {int(out)}",
        ]
        assert code == 0
        # The child has no agent, and the process still has its own.
        assert run("eval", int(out), "1")[2] == 4
        assert run("eval", target.pid, "1")[2] == 0
