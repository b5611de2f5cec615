"""``attach`` and ``detach``: the agent in processes that never loaded it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from terminal import Terminal

import rubies
from commands import run as run_apart
from filtering import EPERM, filtered, forbidding, like_dockers
from processes import MAIN, ROOT, TARGETS, TIMEOUT, Target, comes_true
from public_copy import PublicCopy
from rbtrace_py.agent.client import Agent
from rbtrace_py.cli.main import main
from rbtrace_py.linux.process import Process
from rubies import USER, as_user
from ruby_builds import EACH as EACH_BUILD

pytestmark = pytest.mark.usefixtures("root")

UNAWARE = str(TARGETS / "inside/unaware.rb")
Start = Callable[..., Target]


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target("ruby", UNAWARE)
    yield found
    found.close()


def run(*words: object, env: dict[str, str] | None = None) -> tuple[str, str, int]:
    """Run a command in this process, because starting Python takes long."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("signal.signal"),
        mock.patch.dict(os.environ, env or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main(list(map(str, words)))
    code = end.value.code
    return out.getvalue(), err.getvalue(), code if type(code) is int else 0


def answered(*words: object, env: dict[str, str] | None = None) -> Any:
    """Return the JSON document of a command that succeeds."""
    out, err, code = run(*words, "--json", env=env)
    assert code == 0, err
    return json.loads(out)


def comes_to(target: Target, word: str, answer: str) -> None:
    """Wait for an answer: the agent's threads end some time after the request."""
    end = time.monotonic() + TIMEOUT
    while (found := target.step(word)) != answer:
        assert time.monotonic() < end, found


def inner(target: Target) -> int:
    """Return the host's pid of the process that ``unshare`` started."""
    children = f"/proc/{target.pid}/task/{target.pid}/children"
    return int(Path(children).read_text().split()[0])


def test_what_it_says(target: Target) -> None:
    out, err, code = run_apart("attach", target.pid)
    assert code == 0
    assert " ".join(err.split()) == (
        f"rbtrace-py: pausing process {target.pid} for about a millisecond (longer"
        " on a busy machine) to load the agent: a sleeping thread and a socket"
    )
    first, cost, ruby = out.splitlines()
    assert first == f"process {target.pid} now has the agent, and it answers"
    assert re.match(r"  paused (once|\d+ times), for [\d.]+ .?s", cost)
    assert "; first answer after " in cost
    assert ruby.startswith("  ruby ")
    assert run("eval", target.pid, "6 * 7")[0] == "42\n"


def test_there_already(target: Target) -> None:
    run("attach", target.pid)
    out, err, code = run("attach", target.pid)
    assert (err, code) == ("", 0)
    assert out.startswith(f"process {target.pid} has the agent already\n  ruby ")
    assert answered("attach", target.pid)["was_there"] is True


def test_one_that_loaded_it_itself(start: Start) -> None:
    loaded = start("inside/agent.rb")
    document = answered("attach", loaded.pid)
    assert (document["was_there"], document["attempts"]) == (True, 0)


def test_json(target: Target) -> None:
    document = answered("attach", target.pid)
    assert document.pop("stopped_ns") >= document.pop("longest_ns") > 0
    assert document.pop("answer_ns") > 0
    assert document.pop("attempts") >= 1
    assert document.pop("ruby").startswith("ruby ")
    assert document == {
        "schema": "rbtrace-py/attach",
        "version": 1,
        "pid": target.pid,
        "was_there": False,
        "method_events": True,
        "without_method_events": None,
    }
    assert answered("detach", target.pid) == {
        "schema": "rbtrace-py/detach",
        "version": 1,
        "pid": target.pid,
        "tracer": None,
    }


def test_detach_leaves_nothing_awake(target: Target) -> None:
    """It is done twice, as the second attach restarts what is loaded."""
    before = target.step("left")
    for _ in range(2):
        assert run("attach", target.pid)[2] == 0
        socket = json.loads(
            answered("eval", target.pid, "Tracepoint::Agent.path")["value"]
        )
        assert Path(socket).is_socket()
        out, err, code = run("detach", target.pid)
        assert (err, code) == ("", 0)
        assert out.splitlines() == [
            f"process {target.pid}: the agent is stopped",
            "  removed: its socket, its threads, everything it had armed",
            "  stays until the process exits: its code, inactive",
        ]
        assert not Path(socket).exists()
        comes_to(target, "left", before)


def test_detach_where_there_is_none(target: Target) -> None:
    _, err, code = run("detach", target.pid)
    assert code == 4
    assert f"no agent in process {target.pid}" in err


def test_detach_while_another_traces(target: Target) -> None:
    run("attach", target.pid)
    script = f"""
import os, sys
from rbtrace_py.agent.client import Agent
from rbtrace_py.linux.process import Process
with Process({target.pid}) as process, Agent(process) as agent:
    agent.call("arm", {{"mode": "empty"}})
    print("ready", flush=True)
    sys.stdin.readline()
"""
    tracer = Target(
        sys.executable, "-c", script, env={"PYTHONPATH": str(ROOT / "tracer")}
    )
    try:
        _, err, code = run("detach", target.pid)
        assert code == 1
        assert f"process {tracer.pid} is tracing process {target.pid}" in err
        assert "--yes" in err
        asked = Terminal("detach", target.pid)
        with contextlib.closing(asked):
            asked.read_until("anyway")
            asked.type("n\n")
            assert asked.finish()[0].endswith("rbtrace-py: not confirmed\r\n")
        document = answered("detach", target.pid, "--yes")
        assert document["tracer"] == tracer.pid
    finally:
        tracer.close()
    assert target.step() == "done"


@pytest.mark.parametrize("name", EACH_BUILD)
def test_detach_while_all_places_are_taken(name: str) -> None:
    with (
        rubies.running(name, "inside/agent.rb") as busy,
        Process(busy.pid) as process,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            stack.enter_context(Agent(process))
        _, err, code = run("eval", busy.pid, "1")
        assert (code, "8 connections are open" in err) == (1, True)
        _, err, code = run("detach", busy.pid)
        assert code == 0, err
        assert run("eval", busy.pid, "1")[2] == 4


def test_its_socket_was_taken_away(target: Target) -> None:
    """Cleaners of /tmp remove it, and the agent creates a new one."""
    run("attach", target.pid)
    path = json.loads(answered("eval", target.pid, "Tracepoint::Agent.path")["value"])
    Path(path).unlink()
    assert run("eval", target.pid, "1")[2] == 4
    assert answered("attach", target.pid)["was_there"] is False
    assert run("eval", target.pid, "1")[0] == "1\n"


def test_children_later_have_it_too(target: Target) -> None:
    run("attach", target.pid)
    child = int(target.step("fork"))
    assert answered("attach", child)["was_there"] is True
    run("detach", target.pid)
    assert answered("eval", child, "Process.pid")["value"] == str(child)


def test_preforked_workers(target: Target) -> None:
    children = [int(target.step("fork")) for _ in range(2)]
    out, err, code = run("attach", target.pid, "--subprocesses", "--json")
    assert code == 0, err
    documents = list(map(json.loads, out.splitlines()))
    assert {d["pid"] for d in documents} == {target.pid, *children}
    for child in children:
        assert answered("eval", child, "Process.pid")["value"] == str(child)
    out, _, code = run("detach", target.pid, "--subprocesses")
    assert code == 0
    assert out.count("the agent is stopped") == 3


def test_attach_to_several_continues_after_an_error(target: Target) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        out, err, code = run("attach", f"{other.pid},{target.pid}")
        assert code == 4
        assert f"process {target.pid} now has the agent" in out
        assert f"{other.pid}" in err
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    "words",
    [("eval", "6 * 7"), ("backtraces",), ("memory",), ("heapdump", "-")],
    ids=lambda words: words[0],
)
def test_attach_on_another_command(words: tuple[str, ...], target: Target) -> None:
    name, *rest = words
    _, err, code = run_apart(name, target.pid, *rest)
    # Without an agent, memory shows the kernel's counts.
    answer = (0, "--attach loads") if name == "memory" else (4, "rbtrace-py attach")
    assert (code, answer[1] in " ".join(err.split())) == (answer[0], True), err
    out, err, code = run_apart(name, target.pid, *rest, "--attach")
    assert code == 0
    assert "for about a millisecond" in " ".join(err.split())
    assert out
    _, err, code = run_apart(name, target.pid, *rest, "--attach")
    assert code == 0
    assert "for about a millisecond" not in err


def test_two_at_once(target: Target) -> None:
    """One of them loads an agent, and the other finds it."""
    command = [sys.executable, "-c", MAIN, "attach", str(target.pid), "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
    tracers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(3)
    ]
    found = [json.loads(tracer.communicate(timeout=TIMEOUT)[0]) for tracer in tracers]
    assert sorted(one["was_there"] for one in found) == [False, True, True]


# ------------------------------------------------------------------- namespaces


def attach_and_ask(pid: int, code: str) -> Any:
    document = answered("attach", pid)
    assert (document["was_there"], document["method_events"]) == (False, True)
    return json.loads(answered("eval", pid, code)["value"])


def test_in_pid_and_mount_namespaces_of_its_own(tmp_path: Path) -> None:
    """The target loads the agent and creates its socket in a /tmp that we do not
    see."""
    script = (
        f"mount -t tmpfs tmpfs /tmp && exec ruby {shutil.copy(UNAWARE, '/var/tmp')}"
    )
    words = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    target = Target("unshare", *words, "sh", "-c", script)
    try:
        assert target.ready == "ready 1"
        pid = inner(target)
        path = attach_and_ask(pid, "Tracepoint::Agent.path")
        assert path.startswith("/tmp/rbtrace-agent-0/1-")
        assert not Path(path).exists()
        tmp = Path(f"/proc/{pid}/root/tmp")
        assert sorted(os.listdir(tmp)) == ["rbtrace-agent-0"]
        assert run("detach", pid)[2] == 0
        assert os.listdir(tmp / "rbtrace-agent-0") == []
        assert target.step() == "done"
    finally:
        target.close()


def test_another_users(public_copy: PublicCopy) -> None:
    target = Target(*as_user(["ruby", str(public_copy.targets / "inside/unaware.rb")]))
    try:
        path = attach_and_ask(target.pid, "Tracepoint::Agent.path")
        assert path.startswith(f"/tmp/rbtrace-agent-{USER}/")
        assert Path(path).lstat().st_uid == USER
        assert run("detach", target.pid)[2] == 0
    finally:
        target.close()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user can reach. pytest's directories are private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_directory_for_the_socket_that_the_program_names(
    open_to_all: Path, public_copy: PublicCopy
) -> None:
    """The agent creates its socket there by itself."""
    agents = open_to_all / "agents"
    agents.mkdir(mode=0o700)
    os.chown(agents, USER, USER)
    words = as_user(["ruby", str(public_copy.targets / "inside/unaware.rb")])
    target = Target(*words, env={"TRACEPOINT_AGENT_DIR": str(agents)})
    with contextlib.closing(target):
        # A socket of a killed process is removed.
        deserted = agents / "4194305-1.sock"
        with socket.socket(socket.AF_UNIX) as former:
            former.bind(str(deserted))
        os.chown(deserted, USER, USER)
        path = attach_and_ask(target.pid, "Tracepoint::Agent.path")
        assert Path(path).parent == agents
        assert not deserted.exists()
        assert run("detach", target.pid)[2] == 0


def listens(pid: int) -> bool:
    """Return whether the process has a listening Unix socket (__SO_ACCEPTCON)."""
    fds = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    rows = map(str.split, Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:])
    return any(row[3] == "00010000" and f"socket:[{row[6]}]" in fds for row in rows)


def test_no_directory_for_the_socket(public_copy: PublicCopy) -> None:
    """Other users' directories already have all the names."""
    uid = USER + os.getpid() % 50_000 + 100
    places = [Path(f"{base}/rbtrace-agent-{uid}") for base in ("/tmp", "/dev/shm")]
    words = as_user(["ruby", str(public_copy.targets / "inside/unaware.rb")], uid)
    target = Target(*words, env={"XDG_RUNTIME_DIR": ""})
    try:
        for place in places:
            place.mkdir(mode=0o700)
        out, err, code = run("attach", target.pid)
        assert (out, code) == ("", 1)
        why = f"no socket could be made in {places[0]} or {places[1]}"
        assert why in " ".join(err.split())
        assert not listens(target.pid)
        comes_to(target, "threads", "1")
        places[1].rmdir()
        assert attach_and_ask(target.pid, "6 * 7") == 42
        assert listens(target.pid)
    finally:
        target.close()
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("name", ["it's", "',$stdout.puts('x'),'", "\udce9", "a b"])
def test_a_sessions_directory_of_any_name(name: str, open_to_all: Path) -> None:
    """No part of the name becomes Ruby code."""
    session = open_to_all / name
    session.mkdir(mode=0o700)
    target = Target("ruby", UNAWARE, env={"XDG_RUNTIME_DIR": str(session)})
    with contextlib.closing(target):
        assert attach_and_ask(target.pid, "6 * 7") == 42
        assert target.step() == "done"


@pytest.fixture
def tidy() -> Iterator[None]:
    """Remove a directory that root of a user namespace leaves and that root would find.

    A directory of root itself, from any time since boot, also blocks its place.
    """
    left = Path("/dev/shm/rbtrace-agent-0")
    if left.exists() and left.stat().st_uid == 0:
        left.rmdir()  # empty except for sockets of ended agents
    yield
    if left.exists() and left.stat().st_uid == USER:
        shutil.rmtree(left)


@pytest.mark.alone
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("inside", [[], ["unshare", "--user", "--map-root-user"]])
def test_by_a_user_to_what_is_his(
    inside: list[str], open_to_all: Path, public_copy: PublicCopy
) -> None:
    """The user has none of root's rights, on a kernel that lets users trace their
    processes."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("the kernel does not let users trace their own (Yama)")
    home = open_to_all / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    env = {**public_copy.env, "HOME": str(home)}
    env.pop("XDG_CACHE_HOME", None)
    ruby = ["ruby", str(public_copy.targets / "inside/unaware.rb")]
    target = Target(*as_user([*inside, *ruby]))

    def by_him(*words: str) -> str:
        command = public_copy.command(*words, target.pid, "--json")
        done = subprocess.run(
            as_user(command), capture_output=True, text=True, timeout=TIMEOUT, env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert json.loads(by_him("attach"))["method_events"] is True
        assert list(home.glob(".cache/rbtrace-py/agent/*.json"))
        by_him("detach")
    finally:
        target.close()


@pytest.mark.alone
@pytest.mark.usefixtures("tidy")
def test_a_target_in_a_user_namespace_in_which_we_are_nobody(
    public_copy: PublicCopy,
) -> None:
    """Its agent cannot identify the client. Access to its memory is sufficient."""
    program = str(public_copy.targets / "inside/unaware.rb")
    words = ["unshare", "--user", "--map-root-user", "ruby", program]
    target = Target(*as_user(words))
    try:
        assert attach_and_ask(target.pid, "Process.uid") == 0
        assert run("detach", target.pid)[2] == 0
    finally:
        target.close()


# --------------------------------------------------------------------- refusals


def refused(target: Target, text: str, *words: str, code: int = 1) -> None:
    """The refusal has a reason, and the process is unchanged."""
    out, err, status = run("attach", target.pid, *words)
    assert (out, status) == ("", code), err
    assert text in " ".join(err.split())
    assert "for about a millisecond" not in err
    assert target.step("threads") == "1"


def test_not_ruby() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        out, err, code = run("attach", process.pid)
        assert (out, code) == ("", 4)
        assert "no Ruby" in err or "not Ruby" in err or "Ruby" in err
    finally:
        process.kill()
        process.wait()


def test_under_dockers_filter_of_system_calls() -> None:
    target = Target(*filtered(like_dockers(), "ruby", UNAWARE))
    try:
        assert attach_and_ask(target.pid, "6 * 7") == 42
        assert run("detach", target.pid)[2] == 0
        comes_to(target, "threads", "1")
    finally:
        target.close()


def test_under_a_filter_that_kills() -> None:
    target = Target(*filtered(forbidding([50]), "ruby", UNAWARE))
    try:
        out, err, code = run("attach", target.pid)
        assert (out, code) == ("", 1)
        assert "(seccomp) forbids listen" in " ".join(err.split())
        assert target.step("threads") == "1"
    finally:
        target.close()


def test_under_a_filter_without_memory_files() -> None:
    memfd_create = 319
    program = forbidding([memfd_create], EPERM)
    target = Target(*filtered(program, "ruby", UNAWARE))
    try:
        assert run("attach", target.pid)[2] == 0
        out, err, code = run("calls", target.pid, "-d", "0.1")
        assert (out, code) == ("", 1)
        assert "(seccomp) may forbid memfd_create" in " ".join(err.split())
    finally:
        target.close()


@pytest.fixture
def cgroups(root: None, tmp_path: Path) -> Iterator[Path]:
    """Our own mount of cgroup v2: a system may have it elsewhere or not at all."""
    subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_one_that_is_frozen(cgroups: Path, target: Target) -> None:
    """It is frozen, as by ``docker pause``, and stays frozen afterwards."""
    folder = cgroups / f"rbtrace-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cgroup.procs").write_text(str(target.pid))
        (folder / "cgroup.freeze").write_text("1")
        out, err, code = run("attach", target.pid, "--timeout", "0.3")
        assert (out, code) == ("", 1)
        assert "frozen (docker pause)" in " ".join(err.split())
    finally:
        (folder / "cgroup.freeze").write_text("0")
        (cgroups / "cgroup.procs").write_text(str(target.pid))
        folder.rmdir()
    assert target.step("threads") == "1"


def test_one_that_is_traced(target: Target) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    strace = subprocess.Popen(
        ["strace", "-p", str(target.pid)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert strace.stderr
        assert "attached" in strace.stderr.readline()
        out, err, code = run("attach", target.pid)
        assert (out, code) == ("", 3)
        assert f"is traced by process {strace.pid}" in " ".join(err.split())
    finally:
        strace.terminate()
        strace.communicate()
    assert target.step("threads") == "1"


def test_one_that_is_stopped(target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    os.waitpid(target.pid, os.WUNTRACED)
    out, err, code = run("attach", target.pid)
    assert (out, code) == ("", 1)
    assert "it is stopped" in err
    os.kill(target.pid, signal.SIGCONT)
    assert target.step("threads") == "1"


def test_without_a_compiler(target: Target, tmp_path: Path) -> None:
    """The error comes before any change. --no-hook needs no compiler."""
    env = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CC": ""}
    out, err, code = run("attach", target.pid, env=env)
    assert (out, code) == ("", 1)
    assert "no C compiler found" in err
    assert "--no-hook" in err
    env["CC"] = "no-such-cc -O2"
    assert "no C compiler no-such-cc (CC)" in run("attach", target.pid, env=env)[1]
    env["CC"] = "/bin/false"
    assert "/bin/false could not build" in run("attach", target.pid, env=env)[1]
    assert target.step("threads") == "1"
    document = answered("attach", target.pid, "--no-hook", env=env)
    assert document["method_events"] is False
    assert "agent_hook" in document["without_method_events"]
    assert run("eval", target.pid, "6 * 7")[0] == "42\n"


def test_the_hook_is_built_once(target: Target, tmp_path: Path) -> None:
    """A damaged hook is rebuilt and not loaded into the process."""
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert answered("attach", target.pid, env=cache)["method_events"] is True
    (entry,) = tmp_path.glob("rbtrace-py/agent/*.json")
    run("detach", target.pid)
    none = {**cache, "CC": "/bin/false"}
    assert run("attach", target.pid, env=none)[2] == 0
    run("detach", target.pid)
    built = entry.read_bytes()
    *_, digit = re.finditer(rb"\d", built)
    entry.write_bytes(built[: digit.start()] + b"+" + built[digit.end() :])
    out, err, code = run("attach", target.pid, env=none)
    assert (out, code) == ("", 1)
    assert "/bin/false could not build" in err
    assert run("attach", target.pid, env=cache)[2] == 0
    assert entry.read_bytes() == built


def hold(target: Target) -> None:
    """Let the target wait in C code while holding the GVL."""
    assert target.step("hold") == "holding"
    call = Path(f"/proc/{target.pid}/syscall")
    assert comes_true(lambda: call.read_text().startswith("61 "))  # wait4


def test_a_target_that_keeps_the_gvl(target: Target) -> None:
    """Attach gives up in time, and its prepared code does not run later."""
    hold(target)
    out, err, code = run("attach", target.pid, "--timeout", "0.5")
    assert (out, code) == ("", 1)
    assert f"process {target.pid} did not run the code in time" in err
    assert target.step() == "0"
    assert target.step("threads") == "1"


def helpers_of(pid: int) -> Iterator[tuple[int, Path]]:
    """Yield helper processes that keep files, and their complete folders."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    for child in map(Path, (f"/proc/{number}" for number in children.split())):
        with contextlib.suppress(OSError):
            # The helper waits in read(2) for its end.
            if child.joinpath("syscall").read_text().startswith("0 "):
                opened = [file.readlink() for file in child.joinpath("fd").iterdir()]
                for path in opened:
                    if path.name.startswith(".rbtrace-"):
                        yield int(child.name), path


def has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(fd.readlink() == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def attaching(target: Target) -> subprocess.Popen[str]:
    """Attach to a target that is held, so that the agent is not loaded yet."""
    hold(target)
    command = [sys.executable, "-c", MAIN, "attach", str(target.pid)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


def without_helper(tracer: subprocess.Popen[str]) -> Path:
    """Kill an attach's helper once its folder is in use. Return the folder."""
    found: list[tuple[int, Path]] = []
    assert comes_true(lambda: found.extend(helpers_of(tracer.pid)) or found)
    helper, folder = found[0]
    assert comes_true(lambda: has_open(tracer.pid, folder))
    os.kill(helper, signal.SIGKILL)
    return folder


@pytest.mark.alone  # another attach would remove the files before they are loaded
def test_its_helper_is_killed(target: Target) -> None:
    """Its files stay, and the exit code is 1. A later attach removes them."""
    tracer = attaching(target)
    folder = without_helper(tracer)
    assert target.step() == "0"
    _, err = tracer.communicate(timeout=TIMEOUT)
    said = f"the helper that removes {folder} from the root of process {target.pid} was"
    assert (said in " ".join(err.split()), tracer.returncode) == (True, 1), err
    assert (folder / "agent_hook.so").exists()
    assert run("detach", target.pid)[2] == 0
    assert run("attach", target.pid)[2] == 0
    assert not folder.exists()


def test_its_files_are_removed(target: Target) -> None:
    """Another attach removes them if the helper was killed; attach ends at once."""
    tracer = attaching(target)
    folder = without_helper(tracer)
    shutil.rmtree(folder, ignore_errors=True)
    _, err = tracer.communicate(timeout=TIMEOUT)
    assert "were removed before it loaded them" in " ".join(err.split())
    assert tracer.returncode == 1
    assert target.step() == "0"
    assert target.step("threads") == "1"


def test_interrupted(target: Target) -> None:
    tracer = attaching(target)
    assert tracer.stderr
    assert "for about a millisecond" in tracer.stderr.readline()
    tracer.send_signal(signal.SIGINT)
    _, err = tracer.communicate(timeout=TIMEOUT)
    assert tracer.returncode == 130
    assert err.endswith("rbtrace-py: interrupted\n")
    assert target.step() == "0"
    assert target.step("threads") == "1"


@contextmanager
def prepared(code: str, *options: str) -> Iterator[Target]:
    """Start unaware.rb after some other code, with a readable standard error."""
    target = Target("ruby", *options, UNAWARE, code)
    try:
        yield target
    finally:
        target.close()


def test_a_program_whose_tracepoint_is_another() -> None:
    with prepared("class Tracepoint; end") as target:
        out, err, code = run("attach", target.pid)
        assert (out, code) == ("", 1)
        text = "could not load the agent: TypeError: Tracepoint is not a module"
        assert " ".join(err.split()).endswith(text)
        assert target.step("threads") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "Thread.abort_on_exception = true",
        "Thread.report_on_exception = true; Thread.current.priority = -3",
        "Kernel.prepend(Module.new { def require(n) = n =~ /rb$/ ? raise : super })",
        "Kernel.prepend(Module.new { def load(*) = raise })",
        "Encoding.default_internal = Encoding::UTF_8",
        "Encoding.default_external = Encoding::US_ASCII",
        "class Object; def to_s = raise; def inspect = raise; end",
        "def (RubyVM::InstructionSequence).load_iseq(path) = path =~ /rbtr/ && abort",
        "Signal.trap(:INT) { }; Signal.trap(:TERM) { }",
        "p = path = folder = agent = source = said = e = 5",
        "$stderr.close",
        "require 'tmpdir'; Dir.chdir(d = Dir.mktmpdir); Dir.rmdir(d)",
    ],
)
def test_programs_with_ways_of_their_own(code: str) -> None:
    with prepared(code) as target:
        assert run("attach", target.pid)[2] == 0
        found = answered("eval", target.pid, "[$stdin.fileno, 6 * 7].sum")
        assert found["value"] == "42"
        assert target.step() == "done"
        assert run("detach", target.pid)[2] == 0
        comes_to(target, "threads", "1")


def test_nothing_is_printed_in_the_program(tmp_path: Path) -> None:
    """No warning is printed, even if Ruby prints all warnings."""
    errors = tmp_path / "errors"
    code = f"$stderr.reopen({str(errors)!r})"
    with prepared(code, "-w") as target:
        before = errors.read_text()
        assert run("attach", target.pid)[2] == 0
        assert run("detach", target.pid)[2] == 0
        assert run("attach", target.pid)[2] == 0
        assert errors.read_text() == before


def test_nothing_is_printed_where_the_program_ends_at_once(tmp_path: Path) -> None:
    """It ends while "socket" is loaded, which takes long if threads are busy."""
    errors = tmp_path / "errors"
    code = f"$stderr.reopen({str(errors)!r}); 4.times {{ Thread.new {{ loop {{}} }} }}"
    for _ in range(3):
        with prepared(code) as target:
            assert run("attach", target.pid)[2] == 0
            target.process.stdin.close()
            assert target.process.wait(TIMEOUT) == 0
        assert errors.read_text() == ""


def test_no_file_is_left(target: Target) -> None:
    assert run("attach", target.pid)[2] == 0
    maps = Path(f"/proc/{target.pid}/maps").read_text()
    loaded = re.findall(r"(/\S+/\.rbtrace-\w+)/agent_hook\.so \(deleted\)", maps)
    assert loaded
    assert not any(Path(folder).exists() for folder in loaded)
    features = answered("eval", target.pid, "$LOADED_FEATURES.grep(/agent\\.rb/)")
    assert features["value"] == "[]"


@pytest.mark.parametrize("command", ["attach", "detach"])
def test_words_that_make_no_sense(command: str, target: Target) -> None:
    assert run(command)[2] == 2
    assert run(command, target.pid, "more")[2] == 2
    assert run(command, "--", "ruby", "-e", "1")[2] == 2
    assert run(command, target.pid, "--timeout", "2h")[2] == 2
    assert run(command, 4194303)[2] == 4
