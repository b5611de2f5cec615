"""The agent in a process whose cgroup allows no further thread (pids.max)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rubies
from commands import run
from processes import TARGETS, Target
from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.linux.process import Process
from ruby_builds import EACH

Limit = Callable[[int], None]


@pytest.fixture
def limit(root: None) -> Iterator[Limit]:
    """Put a process into a full cgroup of version 1 or 2. It must not outlive the
    cgroup."""
    first = Path("/sys/fs/cgroup/pids")
    base = first if first.exists() else Path("/sys/fs/cgroup")
    second = base / "cgroup.controllers"
    if second.exists() and "pids" not in second.read_text().split():
        pytest.skip("this machine, maybe a container, may not limit pids by cgroups")
    folder = base / f"rbtrace-threads-{os.getpid()}"
    folder.mkdir()

    def put(pid: int) -> None:
        (folder / "cgroup.procs").write_text(str(pid))
        threads = len(os.listdir(f"/proc/{pid}/task"))
        (folder / "pids.max").write_text(str(threads))

    yield put
    folder.rmdir()


def names_the_limits(text: str) -> bool:
    words = ("pids.max", "TasksMax", "`ulimit -u`")
    return all(word in " ".join(text.split()) for word in words)


@pytest.mark.parametrize("name", EACH)
def test_only_detach_works(name: str, limit: Limit) -> None:
    """Ruby 3.3 hangs if a thread cannot start, so no other request is sent to the
    agent."""
    with rubies.running(name, "inside/agent.rb") as target:
        limit(target.pid)
        for verb, *words in (["eval", "1"], ["memory"], ["calls", "-d", "0.1"]):
            out, err, code = run(verb, target.pid, *words)
            assert (out, code) == ("", 1)
            assert f"process {target.pid} cannot start a thread for its agent" in err
            assert names_the_limits(err)
        _, err, code = run("detach", target.pid)
        if rubies.minor(name) == "3.3":
            assert (names_the_limits(err), code) == (True, 1)
        else:
            assert (err, code) == ("", 0)
            assert run("memory", target.pid)[1].startswith("rbtrace-py: no agent in")
        assert target.target.step("1") == "done 1"


@pytest.mark.parametrize("name", EACH)
def test_what_the_agent_answers(name: str, limit: Limit) -> None:
    """The limit may be reached between the check and the connection."""
    if rubies.minor(name) == "3.3":
        pytest.skip(
            "a bug of Ruby 3.3: Thread.new waits forever for a thread that cannot"
            " start. So we do not connect, as test_only_detach_works shows"
        )
    with rubies.running(name, "inside/agent.rb") as target:
        limit(target.pid)
        with (
            Process(target.pid) as process,
            Agent(process, needs_thread=False) as agent,
            pytest.raises(AgentError) as caught,
        ):
            agent.call("threads")
        assert "can't create Thread: Resource temporarily" in str(caught.value)
        assert names_the_limits(caught.value.hint)
        assert target.target.step("1") == "done 1"


def test_attach_refuses_at_once(limit: Limit) -> None:
    target = Target("ruby", str(TARGETS / "inside/unaware.rb"))
    try:
        limit(target.pid)
        out, err, code = run("attach", target.pid)
        assert target.step("threads") == "1"
    finally:
        target.close()
    assert "allows 0 more threads; the agent needs 3" in " ".join(err.split())
    assert names_the_limits(err)
    assert (out, code) == ("", 1)
