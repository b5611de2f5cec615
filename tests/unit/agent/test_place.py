"""Which socket is a process's own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from processes import Target
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.place import NoAgent, connect, runs_no_ruby
from rbtrace_py.errors import NoSuchTarget, NotPermitted
from rbtrace_py.linux.process import Process
from rubies import USER

LISTENING = """
import os, socket, sys
with open("/proc/self/stat") as stat:
    start = stat.read().rpartition(")")[2].split()[19]
path = f"{os.environ['TRACEPOINT_AGENT_DIR']}/{os.getpid()}-{start}.sock"
server = socket.socket(socket.AF_UNIX)
os.chdir(os.path.dirname(path))
server.bind(os.path.basename(path))
server.listen()
eval(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def listening(directory: Path, then: str = "0") -> Iterator[Process]:
    """A process with a socket where an agent's is; then it does something."""
    env = {"TRACEPOINT_AGENT_DIR": str(directory)}
    target = Target(sys.executable, "-c", LISTENING, then, env=env)
    try:
        with Process(target.pid) as process:
            yield process
    finally:
        target.close()


def test_who_runs_no_ruby(start: Callable[..., Target]) -> None:
    with Process(os.getpid()) as process:
        found = runs_no_ruby(process)
        assert found is not None
        assert str(found) == f"process {process.pid} ({process.comm}) runs no Ruby"
    with Process(start("turning.rb", "0").pid) as process:
        assert runs_no_ruby(process) is None


def test_its_own(tmp_path: Path) -> None:
    with listening(tmp_path) as process, connect(process) as connection:
        assert connection.getpeername().endswith(".sock")


def test_a_path_longer_than_an_address(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    with listening(long) as process:
        connect(process).close()


def test_another_start_time(tmp_path: Path) -> None:
    """As a process of another time namespace has it."""
    with listening(tmp_path) as process:
        for path in tmp_path.glob("*.sock"):
            path.rename(tmp_path / f"{process.pid}-1.sock")
        connect(process).close()


def test_none(tmp_path: Path) -> None:
    then = "os.unlink(os.path.basename(path))"
    with listening(tmp_path, then) as process, pytest.raises(NoAgent) as caught:
        connect(process)
    assert caught.value.exit_code == 4
    assert str(caught.value).endswith(" runs no Ruby")
    assert "CRuby" in caught.value.hint


def test_nobody_listens(tmp_path: Path) -> None:
    with (
        listening(tmp_path, "server.close()") as process,
        pytest.raises(NoAgent, match="nobody listens"),
    ):
        connect(process)


def test_of_another_process(tmp_path: Path) -> None:
    with listening(tmp_path) as process:
        path = next(tmp_path.glob("*.sock"))
        path.unlink()
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(path))
            ours.listen()
            with pytest.raises(NoAgent, match=f"listens .* process {os.getpid()}"):
                connect(process)


def test_of_the_user_it_was(root: None, tmp_path: Path) -> None:
    with (
        listening(tmp_path, f"os.setuid({USER})") as process,
        pytest.raises(NoAgent, match="of user 0"),
    ):
        connect(process)


def test_a_directory_that_is_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with listening(link) as process, pytest.raises(NoAgent):
        connect(process)


CHROOTED = LISTENING.replace("path =", "os.chroot(sys.argv[2])\npath =")


@pytest.mark.parametrize("link", ["/real", "real", "../real", "/other"])
def test_a_link_on_the_way_leads_where_the_process_says(
    link: str, root: None, tmp_path: Path
) -> None:
    """As /var/run -> /run in a container; not into what is ours."""
    (tmp_path / "real/agent").mkdir(parents=True)
    (tmp_path / "other").symlink_to("/real")
    (tmp_path / "way").symlink_to(link)
    env = {"TRACEPOINT_AGENT_DIR": "/way/agent"}
    target = Target(sys.executable, "-c", CHROOTED, "0", str(tmp_path), env=env)
    with contextlib.closing(target), Process(target.pid) as process:
        connect(process).close()


def test_one_that_hangs_up(tmp_path: Path) -> None:
    """As an agent does to a user who is not its own."""
    then = (
        "__import__('threading').Thread(daemon=True,"
        " target=lambda: server.accept()[0].close()).start()"
    )
    with (
        listening(tmp_path, then) as process,
        pytest.raises(NotPermitted, match="hung up"),
    ):
        Agent(process)


def test_a_process_that_ended(tmp_path: Path) -> None:
    with listening(tmp_path) as process:
        os.kill(process.pid, 9)
        assert process.wait(60)
        with pytest.raises(NoSuchTarget, match="has ended"):
            connect(process)
