"""BPF programs that were compiled by a newer clang than this machine's.

Newer versions omit more code that only the verifier needs. trixie's bcc has clang 19,
and bookworm's has clang 14.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import test_kernel_ways as ways

import rbtrace_py
import rubies
from processes import LIB, ROOT, TARGETS, Target
from rbtrace_py.bpf import compiler, stack_walker
from rbtrace_py.bpf.context_switches import ContextSwitches
from rbtrace_py.linux.process import Process
from rbtrace_py.model.switches import SwitchKind
from rbtrace_py.session.stacks import stack_events

pytestmark = [pytest.mark.rubies, pytest.mark.usefixtures("root")]
BUILD = """
from pathlib import Path
from rbtrace_py.bpf.compiler import build_into
build_into(Path({folder!r}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rubies.need("3.3")
    found = tmp_path_factory.mktemp("clang") / "built"
    code = BUILD.format(folder=str(found))
    words = [str(rubies.SCRIPT), "run", "3.3", "env", f"PYTHONPATH={ROOT}/tracer"]
    subprocess.run([*words, "python3", "-c", code], check=True)
    return found


@pytest.fixture(autouse=True)
def newer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use these programs as if a wheel carried them."""
    monkeypatch.setattr(compiler, "BUILT", folder)
    monkeypatch.setattr(compiler, "import_bcc", none_is_compiled)


def none_is_compiled() -> Any:
    raise AssertionError("a program is missing, and is compiled here")


@pytest.mark.parametrize("way", stack_walker._WAYS, ids=["6.9", "5.19", "5.15", "5.11"])
def test_each_way_to_walk(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ways.test_each_way(way, monkeypatch)


@pytest.mark.parametrize("way", stack_walker.EVENT_WAYS, ids=["6.9", "5.11"])
def test_each_way_at_events(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_events, "EVENT_WAYS", (way,))
    assert ways.calls_of_getppid() == (1000, 0)


KINDS = {
    "plain": 7, "outer": 2, "inner": 2, "recursive": 6, "raised": 3, "thrown": 2,
    "broken": 1,
}  # fmt: skip
"""Spans of workload.rb by their kind."""


def by_key(result: rbtrace_py.Result) -> dict[Any, int]:
    return {group.key: group.count for group in result.groups}


def test_probes() -> None:
    """Run every command without a filter, by each kind of key."""
    workload = Target("ruby", "-I", LIB, TARGETS / "probes/workload.rb")
    with closing(workload) as target:
        pid = target.pid
        with (
            rbtrace_py.count(pid, "item") as count,
            rbtrace_py.count(pid, "work", by="kind") as kinds,
            rbtrace_py.count(pid, "work", by="id", subprocesses=True) as ids,
            rbtrace_py.count(pid, "work", by="tid") as threads,
            rbtrace_py.latency(pid, "work") as latency,
            rbtrace_py.latency(pid, "work", by="kind") as slow,
            rbtrace_py.values(pid, "item", argument="id") as numbers,
        ):
            target.step()
        assert count.result().count == 23
        assert by_key(slow.result()) == KINDS
        assert by_key(kinds.result()) == KINDS
        assert ids.result().count == latency.result().count == 23
        assert len(by_key(threads.result())) == 3
        assert numbers.result().count == 23
        with rbtrace_py.trace(pid, "item") as events:
            target.step()
            found = Counter(event.arguments["kind"] for event in islice(events, 23))
        assert found == KINDS


def test_switches() -> None:
    """A thread that waits for a child leaves its CPU and comes back."""
    with ContextSwitches() as switches, Process(os.getpid()) as process:
        switches.watch(process)
        switches.take()
        subprocess.run(["true"], check=True)
        kinds = {one.what for one in switches.take() if one.tid == os.getpid()}
    assert kinds >= {SwitchKind.OFF, SwitchKind.ON}
