"""The agent's socket and other users: neither side talks to the wrong peer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import peers
import pytest

from processes import TIMEOUT, Target
from public_copy import PYTHON, PublicCopy
from rbtrace_py.agent.place import NoAgent, connect
from rbtrace_py.linux.process import Process
from rubies import USER, as_user

pytestmark = pytest.mark.usefixtures("root")

OTHER = USER + 1
NOBODY = 65_534
AGENT = """
require "tracepoint/agent"
$stdout.sync = true
puts "ready #{Tracepoint::Agent.path}"
$stdin.gets
"""
KNOCK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as ours:
    try:
        ours.connect(sys.argv[1])
        ours.sendall(bytes(12))
        print("answered" if ours.recv(1) else "closed")
    except (ConnectionResetError, BrokenPipeError):
        print("closed")
    except OSError as error:
        print(error.strerror)
"""
"""A program that connects and sends an invalid message, to which its own user gets
an error."""
IN_ONES_OWN = ["unshare", "--user", "--map-root-user"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def start(folder: Path, public_copy: PublicCopy) -> Iterator[Callable[..., Target]]:
    """Start a process of a user with the agent, perhaps in a user namespace."""
    started: list[Target] = []

    def begin(uid: int, *inside: str) -> Target:
        made = folder / "agent"
        made.mkdir(mode=0o700)
        os.chown(made, uid, uid)
        env = {"TRACEPOINT_AGENT_DIR": str(made)}
        ruby = ["ruby", f"-I{public_copy.lib}", "-e", AGENT]
        started.append(Target(*as_user([*inside, *ruby], uid), env=env))
        return started[-1]

    yield begin
    for target in started:
        target.close()


def knock(path: Path, uid: int, *inside: str) -> str:
    """Return what another user's program gets there."""
    command = as_user([*inside, PYTHON, "-c", KNOCK, str(path)], uid)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    return done.stdout.strip()


def opened(target: Target) -> Path:
    """Return its socket, after its file permissions let all users connect."""
    path = Path(target.ready.split()[1])
    path.parent.chmod(0o755)
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("around", [[], IN_ONES_OWN], ids=["plain", "namespace"])
@pytest.mark.parametrize("inside", [[], IN_ONES_OWN], ids=["plain", "namespace"])
def test_another_user_is_not_let_in(
    inside: list[str], around: list[str], start: Callable[..., Target]
) -> None:
    """Root of a user namespace has no special rights outside of it."""
    target = start(USER, *around)
    path = Path(target.ready.split()[1])
    assert knock(path, OTHER, *inside) == "Permission denied"
    opened(target)
    step = [peers.enter_user_namespace] if inside else []
    said = peers.knock(path, peers.become(OTHER), *step)
    # In a namespace, all users without a number there look alike, even root.
    assert said == ("denied" if around else "closed")
    with Process(target.pid) as process:
        connect(process).close()


def test_a_user_unknown_in_a_namespace_is_not_nobody(
    start: Callable[..., Target],
) -> None:
    """The kernel reports all unknown users as 65534, which is a real user."""
    target = start(USER, "unshare", "--user", f"--map-user={NOBODY}")
    assert peers.knock(opened(target), peers.become(OTHER)) == "denied"


def test_nobody_is_a_user_if_all_users_are_known(start: Callable[..., Target]) -> None:
    target = start(NOBODY)
    path = opened(target)
    assert knock(path, OTHER) == "closed"
    assert knock(path, NOBODY) == "answered"
    assert knock(path, 0) == "answered"


FALSE_AGENT = """
import os, socket, sys
directory, name = sys.argv[1:]
os.makedirs(directory, 0o755, exist_ok=True)
os.chdir(directory)
server = socket.socket(socket.AF_UNIX)
server.bind(name)
os.chmod(name, 0o777)
server.listen()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("inside", [[], IN_ONES_OWN], ids=["plain", "namespace"])
def test_another_users_socket_is_not_used(
    inside: list[str], folder: Path, public_copy: PublicCopy
) -> None:
    """It is in a directory that the other user created first."""
    made = folder / "agent"
    made.mkdir()
    os.chown(made, OTHER, OTHER)
    env = {"TRACEPOINT_AGENT_DIR": str(made)}
    program = "require 'tracepoint/agent'; $stdout.sync = true; puts :ready; gets"
    command = ["ruby", f"-I{public_copy.lib}", "-W0", "-e", program]
    target = Target(*as_user(command), env=env)
    with Process(target.pid) as process:
        name = f"{process.pid}-{process.start_time}.sock"
        words = [*inside, PYTHON, "-c", FALSE_AGENT, str(made), name]
        false = Target(*as_user(words, OTHER))
        try:
            assert list(made.iterdir()) == [made / name]
            with pytest.raises(NoAgent) as caught:
                connect(process)
            assert f"{made}, which belongs to user {OTHER}" in caught.value.hint
        finally:
            false.close()
            target.close()
