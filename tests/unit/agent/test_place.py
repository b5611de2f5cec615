"""The choice of a process's own socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import LIB, Target, read_line
from public_copy import PublicCopy
from rbtrace_py.agent import place
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.place import NoAgent, connect, runs_no_ruby
from rbtrace_py.errors import NoSuchTarget, NotPermitted
from rbtrace_py.linux.process import Process
from rubies import USER, as_user

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
    """A process with a socket at an agent's path that then behaves in a given way."""
    env = {"TRACEPOINT_AGENT_DIR": str(directory)}
    target = Target(sys.executable, "-c", LISTENING, then, env=env)
    try:
        with Process(target.pid) as process:
            yield process
    finally:
        target.close()


def test_a_process_that_does_not_run_ruby(start: Callable[..., Target]) -> None:
    with Process(os.getpid()) as process:
        found = runs_no_ruby(process)
        assert found is not None
        assert str(found) == f"process {process.pid} ({process.comm}) does not run Ruby"
    with Process(start("stacks/turning.rb", "0").pid) as process:
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
    """A process of another time namespace has an agent."""
    with listening(tmp_path) as process:
        for path in tmp_path.glob("*.sock"):
            path.rename(tmp_path / f"{process.pid}-1.sock")
        connect(process).close()


def test_none(tmp_path: Path) -> None:
    then = "os.unlink(os.path.basename(path))"
    with listening(tmp_path, then) as process, pytest.raises(NoAgent) as caught:
        connect(process)
    assert caught.value.exit_code == 4
    assert str(caught.value).endswith(" does not run Ruby")
    assert "CRuby" in caught.value.hint


def test_no_process_listens(tmp_path: Path) -> None:
    with (
        listening(tmp_path, "server.close()") as process,
        pytest.raises(NoAgent, match="no process is listening"),
    ):
        connect(process)


def test_a_socket_of_another_process(tmp_path: Path) -> None:
    with listening(tmp_path) as process:
        path = next(tmp_path.glob("*.sock"))
        path.unlink()
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(path))
            ours.listen()
            with pytest.raises(NoAgent, match=f"process {os.getpid()} listens"):
                connect(process)


def test_a_directory_of_another_user_after_setuid(
    root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "runs_no_ruby", lambda process: None)
    then = f"os.setuid({USER})"
    with listening(tmp_path, then) as process:
        connect(process).close()  # root started the process
        os.chown(tmp_path, 1, 1)
        with pytest.raises(NoAgent) as caught:
            connect(process)
    assert f"{tmp_path}, which belongs to user 1" in caught.value.hint


def test_a_server_that_root_started(root: None) -> None:
    """The server becomes another user after its agent has started, as workers do."""
    source = AGENT.replace("$stdin.gets", f"Process::UID.change_privilege({USER})")
    source += "puts 'done'; $stdin.gets"
    target = Target("ruby", f"-I{LIB}", "-e", source, env={"XDG_RUNTIME_DIR": ""})
    with contextlib.closing(target), Process(target.pid) as process:
        assert read_line(target.process.stdout) == "done"
        assert process.uid == USER
        with Agent(process) as client:
            assert client.hello["uid"] == USER


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
    """/var/run -> /run in a container is such a link. It must not lead into our own
    files."""
    (tmp_path / "real/agent").mkdir(parents=True)
    (tmp_path / "other").symlink_to("/real")
    (tmp_path / "way").symlink_to(link)
    env = {"TRACEPOINT_AGENT_DIR": "/way/agent"}
    target = Target(sys.executable, "-c", CHROOTED, "0", str(tmp_path), env=env)
    with contextlib.closing(target), Process(target.pid) as process:
        connect(process).close()


IN_APP = CHROOTED.replace("(sys.argv[2])", "(sys.argv[2]); os.chdir('/app')")


@pytest.mark.parametrize("link", ["/real", "../real", "../../../../real"])
def test_a_relative_directory_leads_where_the_process_says(
    link: str, root: None, tmp_path: Path
) -> None:
    (tmp_path / "real/agent").mkdir(parents=True)
    (tmp_path / "app").mkdir()
    (tmp_path / "app/way").symlink_to(link)
    env = {"TRACEPOINT_AGENT_DIR": "way/agent"}
    words = ("os.chdir('/app')", str(tmp_path))
    target = Target(sys.executable, "-c", IN_APP, *words, env=env)
    with contextlib.closing(target), Process(target.pid) as process:
        connect(process).close()


@pytest.fixture
def foreign(root: None, tmp_path: Path) -> Path:
    tmp_path.chmod(0o711)
    made = tmp_path / "foreign"
    made.mkdir(mode=0o755)
    return made


FULL = """
for i in range(40):
    full = socket.socket(socket.AF_UNIX)
    full.bind(f"{os.getpid()}-{i}.sock")
    full.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.setblocking(False)
    waiting.connect_ex(f"{os.getpid()}-{i}.sock")
    globals()[f"kept{i}"] = full, waiting
os.unlink(os.path.basename(path))
"""
"""A program with sockets that do not accept connections, and whose queues are full."""


def counted(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[float]:
    """Return the seconds that each attempt to connect to a socket there may take."""
    made: list[float] = []
    connect_to = place._connect

    def attempt(path: str, seconds: float, reasons: list[str]) -> Any:
        if os.readlink(os.path.dirname(path)) == str(directory):
            made.append(seconds)
        return connect_to(path, seconds, reasons)

    monkeypatch.setattr(place, "_connect", attempt)
    return made


def test_sockets_that_never_take_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, they get the time of a single one."""
    monkeypatch.setattr(place, "CONNECT_SECONDS", 0.3)
    attempts = counted(monkeypatch, tmp_path)
    with (
        listening(tmp_path, f"exec({FULL!r})") as process,
        pytest.raises(NoAgent, match="too many are waiting"),
    ):
        connect(process)
    assert 1 <= len(attempts) <= 16
    assert attempts == sorted(attempts, reverse=True)
    assert attempts[0] <= 0.3


@pytest.mark.parametrize("owner", [USER, 0], ids=["owned", "writable"])
def test_a_directory_of_somebody_else(
    owner: int, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at once by name, and none of its sockets is tried."""
    monkeypatch.setattr(place, "runs_no_ruby", lambda process: None)
    attempts = counted(monkeypatch, foreign)
    with listening(foreign, f"exec({FULL!r})") as process:
        os.chown(foreign, owner, owner)
        foreign.chmod(0o1777)
        words = f"belongs to user {USER}" if owner else "can be written by others"
        with pytest.raises(NoAgent) as caught:
            connect(process)
    assert f"not checked: {foreign}, which {words}" in caught.value.hint
    assert attempts == []


AGENT = """
require "tracepoint/agent"
$stdout.sync = true
puts "ready #{Tracepoint::Agent.path}"
$stdin.gets
"""


AgentOf = Callable[..., contextlib.AbstractContextManager[tuple[Process, Path]]]


@pytest.fixture
def agent(public_copy: PublicCopy) -> AgentOf:
    """Starts a Ruby of a user: the process, and the directory of its socket."""

    @contextlib.contextmanager
    def start(uid: int, **env: str) -> Iterator[tuple[Process, Path]]:
        words = as_user(["ruby", f"-I{public_copy.lib}", "-e", AGENT], uid)
        target = Target(*words, env={"XDG_RUNTIME_DIR": "", **env})
        try:
            with Process(target.pid) as process:
                yield process, Path(target.ready.split()[1]).parent
        finally:
            target.close()

    return start


@contextlib.contextmanager
def directory(path: Path, uid: int, mode: int = 0o700) -> Iterator[Path]:
    """A directory that a user owns, which is removed afterwards."""
    path.mkdir(parents=True)
    os.chown(path, uid, uid)
    path.chmod(mode)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def user(root: None) -> Iterator[int]:
    """A user without agent directories, before and after the test."""
    uid = USER + os.getpid() % 50_000 + 100
    places = [Path(f"{base}/rbtrace-agent-{uid}") for base in ("/tmp", "/dev/shm")]
    yield uid
    for one in places:
        shutil.rmtree(one, ignore_errors=True)


def test_the_directory_that_the_session_has(user: int, agent: AgentOf) -> None:
    """XDG_RUNTIME_DIR of the target differs from ours."""
    with (
        directory(Path(f"/tmp/rbtrace-test-{user}"), user) as runtime,
        agent(user, XDG_RUNTIME_DIR=str(runtime)) as (process, where),
    ):
        assert where == runtime / f"rbtrace-agent-{user}"
        connect(process).close()


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_sessions_directory_that_others_can_enter(
    mode: int, user: int, agent: AgentOf
) -> None:
    with (
        directory(Path(f"/tmp/rbtrace-test-{user}"), user, mode) as runtime,
        agent(user, XDG_RUNTIME_DIR=str(runtime)) as (process, where),
    ):
        assert where == Path(f"/tmp/rbtrace-agent-{user}")
        connect(process).close()


@pytest.mark.parametrize("runtime", ["run", "/nowhere", "/" + "d" * 200, "/etc/passwd"])
def test_a_sessions_directory_that_is_none(
    runtime: str, user: int, agent: AgentOf
) -> None:
    with agent(user, XDG_RUNTIME_DIR=runtime) as (process, where):
        assert where == Path(f"/tmp/rbtrace-agent-{user}")
        connect(process).close()


def test_the_users_directory(user: int, agent: AgentOf) -> None:
    with (
        directory(Path(f"/run/user/{user}"), user) as runtime,
        agent(user) as (process, where),
    ):
        assert where == runtime / f"rbtrace-agent-{user}"
        connect(process).close()


def test_another_user_was_there_first(user: int, agent: AgentOf) -> None:
    """The agent uses another directory, and the tracer finds it."""
    with (
        directory(Path(f"/tmp/rbtrace-agent-{user}"), USER) as squatted,
        agent(user) as (process, where),
    ):
        assert where == Path(f"/dev/shm/rbtrace-agent-{user}")
        connect(process).close()
        shutil.rmtree(where)
        with pytest.raises(NoAgent) as caught:
            connect(process)
        assert f"{squatted}, which belongs to user {USER}" in caught.value.hint


@pytest.mark.parametrize("link", ["/real", "../real"])
def test_a_sessions_directory_in_the_targets_root(
    link: str, root: None, tmp_path: Path
) -> None:
    """XDG_RUNTIME_DIR is a path in there, where links lead in there too."""
    (tmp_path / "real" / f"rbtrace-agent-{os.getuid()}").mkdir(parents=True)
    (tmp_path / "way").symlink_to(link)
    script = CHROOTED.replace("{os.environ['TRACEPOINT_AGENT_DIR']}", "{sys.argv[3]}")
    words = [str(tmp_path), f"/way/rbtrace-agent-{os.getuid()}"]
    env = {"XDG_RUNTIME_DIR": "/way"}
    target = Target(sys.executable, "-c", script, "0", *words, env=env)
    with contextlib.closing(target), Process(target.pid) as process:
        connect(process).close()


def test_an_agent_that_hangs_up(tmp_path: Path) -> None:
    """An agent closes the connections of other users."""
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
