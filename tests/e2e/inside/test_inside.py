"""``backtraces`` and ``memory``: a process's report about itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rubies
from commands import run
from processes import TARGETS, Target
from rubies import HERE
from ruby_builds import EACH

Start = Callable[..., Target]
MAIN_LINE, WAIT_LINE, WORKER_LINE = (
    1 + (TARGETS / "inside/agent.rb").read_text().splitlines().index(line)
    for line in (
        '$stdin.each_line { |line| puts "done #{line}" }',
        "  queue.pop",
        "worker = Thread.new { wait_inside(Queue.new) }",
    )
)


@pytest.fixture
def target(start: Start) -> Target:
    return start("inside/agent.rb")


def is_at(line: str, number: int, name: str) -> bool:
    """Match the formats of old and new Rubies: ``in `pop'``, ``in 'Queue#pop'``."""
    return re.fullmatch(rf"\S+:{number}:in ['`]([\w:]+#)?{name}'", line) is not None


def check_threads(document: dict[str, Any]) -> None:
    main, worker = document["threads"]
    assert (main["main"], main["agent"], main["name"]) == (True, False, None)
    assert is_at(main["backtrace"][-1], MAIN_LINE, "<main>")
    assert (worker["main"], worker["name"]) == (False, "worker")
    assert worker["status"].startswith("sleep")
    pop, wait, block = worker["backtrace"][-3:]
    # From Ruby 3.3 on, it is a Ruby method.
    assert "pop'" in pop
    assert is_at(wait, WAIT_LINE, "wait_inside")
    assert is_at(block, WORKER_LINE, "block in <main>")


def test_backtraces(target: Target) -> None:
    out, err, code = run("backtraces", target.pid)
    assert (err, code) == ("", 0)
    main, worker = out.split("\n\n")[1:]
    assert out.splitlines()[0] == f"process {target.pid}, 2 threads"
    assert main.splitlines()[0] == f"thread {target.pid}, main, sleep"
    assert re.match(r'thread \d+ "worker", sleep', worker)
    assert is_at(worker.splitlines()[2].strip(), WAIT_LINE, "wait_inside")


def test_backtraces_as_json(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert run("backtraces", target.pid, "--json", "-o", path) == ("", "", 0)
    document = json.loads(path.read_text())
    assert document["schema"] == "rbtrace-py/backtraces"
    assert document["pid"] == target.pid
    check_threads(document)


def test_the_agents_own_threads(target: Target) -> None:
    out, _, _ = run("backtraces", target.pid, "--json", "--agent")
    threads = json.loads(out)["threads"]
    assert sum(thread["agent"] for thread in threads) == len(threads) - 2 > 0


@pytest.mark.parametrize("command", ["memory", "backtraces", "attach"])
def test_a_child_that_is_no_ruby_is_left_out(start: Start, command: str) -> None:
    target = start("methods/methods.rb")
    target.step("spawn")
    out, err, code = run(command, target.pid, "--subprocesses", "--json")
    assert code == 0, err
    assert "skipping process " in " ".join(err.split())
    assert [json.loads(line)["pid"] for line in out.splitlines()] == [target.pid]


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str) -> None:
    with rubies.running(name, "inside/agent.rb") as target:
        check_threads(json.loads(run("backtraces", target.pid, "--json")[0]))
        check_memory(json.loads(run("memory", target.pid, "--json")[0]), target.pid)


def check_memory(document: dict[str, Any], pid: int) -> None:
    assert document["schema"] == "rbtrace-py/memory"
    assert document["pid"] == pid
    resident = Path(f"/proc/{pid}/statm").read_text().split()[1]
    page = os.sysconf("SC_PAGE_SIZE")
    assert document["rss"] == pytest.approx(int(resident) * page, rel=0.5)
    objects = document["objects"]
    counted = sum(count for name, count in objects.items() if name != "TOTAL")
    assert counted == objects["TOTAL"]
    assert objects["T_STRING"] > 1000
    assert document["gc"]["heap_live_slots"] > 1000


def test_memory(target: Target) -> None:
    out, err, code = run("memory", target.pid)
    assert (err, code) == ("", 0)
    kernel, objects, gc = out.split("\n\n")
    assert kernel.splitlines()[0] == f"process {target.pid}"
    assert re.search(r"^  resident +[\d,]+ +[\d.]+ MiB$", kernel, re.MULTILINE)
    assert re.search(r"^  T_STRING +[\d,]+ +[\d.]+ %$", objects, re.MULTILINE)
    assert re.search(r"^  heap_live_slots +[\d,]+$", gc, re.MULTILINE)
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_memory_without_an_agent() -> None:
    with closing(Target(*rubies.command(HERE))) as target:
        out, err, code = run("memory", target.pid)
        document = json.loads(run("memory", target.pid, "--json")[0])
        status = Path(f"/proc/{target.pid}/status").read_text()
    assert code == 0
    assert f"no agent in process {target.pid}: objects" in err
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["process", "resident", "proportional", "swapped"]
    (resident,) = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert document["rss"] == pytest.approx(int(resident) * 1024, rel=0.1)
    assert (document["gc"], document["objects"]) == ({}, {})


@pytest.mark.parametrize("command", ["backtraces", "shapesdump", "fork"])
def test_without_an_agent(command: str) -> None:
    target = Target(*rubies.command(HERE))
    try:
        out, err, code = run(command, target.pid)
    finally:
        target.close()
    assert err.startswith(f"rbtrace-py: no agent in process {target.pid}\n")
    assert (out, code) == ("", 4)
