"""Access to the agent: for processes that may read its memory, or its owner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from peers import (
    become,
    drop_capabilities,
    enter_pid_namespace,
    enter_user_namespace,
    knock,
    read_no_memory,
    run_apart,
)

from processes import Target
from public_copy import PublicCopy
from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.proof import prove
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import children
from rbtrace_py.linux.procfs import read_int
from rubies import USER, as_user

pytestmark = pytest.mark.usefixtures("root")

AGENT = """
require "tracepoint/agent"
$stdout.sync = true
puts "ready #{Tracepoint::Agent.path}"
$stdin.gets
"""
PRCTL = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
NOT_DUMPABLE = f"$VERBOSE = nil; syscall({PRCTL}, 4, 0)\n{AGENT}"
LEVELS = ["observe", "trace", "eval"]
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
IN_A_USER_NAMESPACE = ["unshare", "--user", "--map-root-user"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets that every user can reach."""
    with TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


Start = Callable[..., Target]


@pytest.fixture
def start(folder: Path, public_copy: PublicCopy) -> Iterator[Start]:
    """A process of a user with the agent."""
    started: list[Target] = []

    def begin(
        program: str = AGENT,
        uid: int = USER,
        consent: str = "",
        before: list[str] = [],  # noqa: B006
        inside: list[str] = [],  # noqa: B006
        has_own_place: bool = True,
    ) -> Target:
        env = {"TRACEPOINT_AGENT": consent}
        if has_own_place:
            made = folder / "agent"
            made.mkdir(mode=0o700)
            os.chown(made, uid, uid)
            env["TRACEPOINT_AGENT_DIR"] = str(made)
        ruby = [*inside, "ruby", f"-I{public_copy.lib}", "-e", program]
        words = as_user(ruby, uid) if uid else ruby
        started.append(Target(*before, *words, env=env))
        return started[-1]

    yield begin
    for target in started:
        target.close()


def path_of(target: Target) -> Path:
    return Path(target.ready.split()[1])


def test_who_may_read_the_memory(start: Start) -> None:
    path = path_of(start())
    assert knock(path) == "eval"
    # Yama, if present, requires more.
    own = "denied" if read_int(YAMA) else "eval"
    assert knock(path, become(USER)) == own


def test_a_process_that_dropped_its_rights(start: Start) -> None:
    path = path_of(start(NOT_DUMPABLE))
    assert knock(path, become(USER)) == "denied"
    assert knock(path) == "eval"


@pytest.mark.parametrize("consent", LEVELS)
def test_the_owners_consent(consent: str, start: Start) -> None:
    path = path_of(start(NOT_DUMPABLE, consent=consent))
    assert knock(path, become(USER)) == consent
    assert knock(path) == "eval"


def test_a_level_that_is_none(start: Start) -> None:
    path = path_of(start(NOT_DUMPABLE, consent="everything"))
    assert knock(path, become(USER)) == "denied"


@pytest.mark.parametrize("uid", [0, USER], ids=["root", "user"])
@pytest.mark.parametrize("consent", ["", "eval"], ids=["unset", "eval"])
def test_two_containers_with_one_tmp(uid: int, consent: str, start: Start) -> None:
    """The same user ID in another PID namespace is not the user who consented."""
    path = path_of(start(uid=uid, consent=consent, before=IN_A_CONTAINER))
    steps = [enter_pid_namespace, become(uid), drop_capabilities]
    assert knock(path, *steps) == "denied"


@pytest.mark.parametrize("consent", ["", "trace"], ids=["unset", "trace"])
def test_a_process_further_inside(consent: str, start: Start) -> None:
    """The agent sees the client's pid, although it is in another pid namespace."""
    path = path_of(start(NOT_DUMPABLE, consent=consent))
    assert knock(path, enter_pid_namespace, become(USER)) == "denied"


def test_a_root_without_capabilities(start: Start) -> None:
    """A container's root is user 0, but may not trace processes with more rights."""
    path = path_of(start(uid=0))
    assert knock(path, drop_capabilities) == "denied"
    assert knock(path) == "eval"


def test_a_root_without_capabilities_and_anothers_process(start: Start) -> None:
    """Consent is for the same user, which root is not."""
    path = path_of(start(consent="eval"))
    assert knock(path, drop_capabilities).startswith(("denied", "PermissionError"))


def test_a_user_namespace_around_the_peer(start: Start) -> None:
    path = path_of(start())
    assert knock(path, become(USER), enter_user_namespace) == "denied"


def test_a_user_namespace_around_the_agent(start: Start) -> None:
    """Root outside of the namespace is unknown inside, but may read the memory."""
    path = path_of(start(inside=IN_A_USER_NAMESPACE))
    assert knock(path) == "eval"
    assert knock(path, become(USER)) == ("denied" if read_int(YAMA) else "eval")


@pytest.mark.parametrize("consent", ["", *LEVELS])
def test_yama(consent: str, start: Start) -> None:
    path = path_of(start(consent=consent))
    assert knock(path, become(USER), read_no_memory) == (consent or "denied")


# ------------------------------------------------------------------- our own client


def ask(pid: int) -> str:
    """Return the level and the codes of three requests, or the error."""
    try:
        with Process(pid) as process, Agent(process) as agent:
            said = [str(agent.hello["level"])]
            for command, arguments in (
                ("threads", {}),
                ("memory", {}),
                ("eval", {"code": "6 * 7"}),
            ):
                try:
                    agent.call(command, arguments)
                    said.append("yes")
                except AgentError as error:
                    said.append(error.code)
            return " ".join(said)
    except RbtraceError as error:
        return f"{type(error).__name__}: {error}; {error.hint}"


def test_our_client_without_consent(start: Start) -> None:
    target = start(NOT_DUMPABLE, has_own_place=False)
    said = run_apart(lambda: ask(target.pid), become(USER))
    assert said.startswith("NotPermitted: the agent only answers users who may")
    assert "it is not dumpable" in said
    assert "TRACEPOINT_AGENT=observe, trace or eval" in said


@pytest.mark.parametrize(
    ("consent", "answers"),
    [
        ("observe", "yes denied denied"),
        ("trace", "yes yes denied"),
        ("eval", "yes yes yes"),
    ],
)
def test_our_client_with_consent(consent: str, answers: str, start: Start) -> None:
    target = start(NOT_DUMPABLE, consent=consent, has_own_place=False)
    said = run_apart(lambda: ask(target.pid), become(USER))
    assert said == f"{consent} {answers}"


def test_our_client_as_root(start: Start) -> None:
    target = start(NOT_DUMPABLE, before=IN_A_CONTAINER, inside=IN_A_USER_NAMESPACE)
    (pid,) = children(target.pid)
    assert ask(pid) == "eval yes yes yes"


def test_a_proof_that_another_process_passes_on(
    folder: Path, public_copy: PublicCopy
) -> None:
    """It listened before the exec, and its child passes root's proof to the agent."""
    made = folder / "agent"
    made.mkdir(mode=0o700)
    os.chown(made, USER, USER)
    relayed = made / "relayed"
    os.mkfifo(relayed)
    os.chown(relayed, USER, USER)
    program = ["ruby", f"-I{public_copy.lib}", "-e", NOT_DUMPABLE]
    words = ["ruby", str(public_copy.targets / "inside/relay.rb"), str(made), *program]
    target = Target(*as_user(words, USER), env={"TRACEPOINT_AGENT_DIR": str(made)})
    try:
        relayed.read_bytes()
        said = ask(target.pid)
    finally:
        target.close()
    assert said.startswith("NotPermitted: another process relays messages to")


def test_only_the_text_of_a_proof_is_told() -> None:
    """The listener need not be the process, and would learn its secrets."""
    with Process(os.getpid()) as process:
        for address in (0, -1, 1 << 70, id(b"secret"), "x", 1.5):
            with pytest.raises(BrokenAgent):
                prove(process, address)
        assert prove(process, None) is None


def test_who_may_not_open_the_memory() -> None:
    with Process(os.getppid()) as process:

        def attempt() -> str:
            return str(prove(process, 4096))

        assert run_apart(attempt, become(USER)) == "None"
