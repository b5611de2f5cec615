"""Agents in processes with seccomp filters: they must not trigger a filter that
kills."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rubies
from commands import run, run_program
from filtering import (
    EPERM,
    OF_SYS_PTRACE,
    allowing_all,
    filtered,
    forbidding,
    like_dockers,
)
from processes import MAIN, TARGETS, Target, comes_true
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.refusal import Refused
from rbtrace_py.linux.process import Process
from rubies import HERE
from ruby_builds import EACH

pytestmark = pytest.mark.usefixtures("root")

PROGRAM = "inside/filtered.rb"
UNLINK, WAIT4, PIPE2, TGKILL, MEMFD_CREATE = 87, 61, 293, 234, 319
CLONE, FORK, GETSOCKOPT, ACCEPT4 = 56, 57, 55, 288


WAITS = {"poll": 7, "select": 23, "pselect6": 270, "ppoll": 271}


def awaits_connection(pid: int) -> bool:
    """Return whether the agent's thread waits and so makes no system call."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text() == "rbtrace agent\n":
                number = (task / "syscall").read_text().split()[0]
                return number in map(str, WAITS.values())
    return False


@contextlib.contextmanager
def under(*filters: bytes, name: str = HERE) -> Iterator[rubies.Running]:
    with rubies.running(name, PROGRAM) as target:
        for each in filters:
            assert target.target.step(each.hex()) == "done"
        yield target


def is_refused(call: str, *words: object) -> None:
    """Check that it is refused before the agent does anything, and that the process
    lives."""
    out, err, code = run(*words)
    assert (out, code) == ("", 1), err
    assert f"its seccomp filter kills it for {call}" in " ".join(err.split())


@pytest.mark.parametrize("name", EACH)
def test_commands_that_would_kill(name: str, tmp_path: Path) -> None:
    with under(forbidding([WAIT4, MEMFD_CREATE, UNLINK]), name=name) as target:
        out, err, code = run("eval", target.pid, "6 * 7")
        assert (out, code) == ("42\n", 0), err
        assert f"a thread of the agent in process {target.pid}" in " ".join(err.split())
        assert "pausing" in err
        is_refused("wait4", "heapdump", target.pid, tmp_path / "heap")
        is_refused("wait4", "fork", target.pid)
        is_refused("memfd_create", "calls", target.pid, "-d", "0.1", "--yes")
        is_refused("unlink", "detach", target.pid)
        assert list(tmp_path.iterdir()) == []
        assert run("memory", target.pid)[2] == 0
        assert target.target.step() == "done"


@pytest.mark.parametrize("name", [rubies.chroot("3.3"), rubies.chroot("3.4")])
def test_an_agent_on_a_shared_thread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ruby does not name a native thread that several of its threads share."""
    monkeypatch.setenv("RUBY_MN_THREADS", "1")
    with under(forbidding([WAIT4]), name=name) as target:
        assert run("eval", target.pid, "6 * 7")[0] == "42\n"
        is_refused("wait4", "heapdump", target.pid, tmp_path / "heap")
        assert target.target.step() == "done"


@pytest.mark.parametrize("name", EACH)
def test_an_agent_whose_threads_have_other_names(name: str) -> None:
    """As on shared threads, the first message is checked before the agent is used."""
    rename = "Thread.list.each { |t| t.name = 'x' if Tracepoint::Agent.own?(t) }"
    with under(name=name) as target:
        assert run("eval", target.pid, rename)[2] == 0
        assert target.target.step(forbidding([GETSOCKOPT]).hex()) == "done"
        is_refused("getsockopt", "eval", target.pid, "1")
        assert target.target.step() == "done"


@pytest.mark.parametrize(
    ("number", "call", "words"),
    [
        (PIPE2, "pipe2", ("eval", "1")),
        (PIPE2, "pipe2", ("trace", "raise", "-d", "0.1")),
        (MEMFD_CREATE, "memfd_create", ("latency", "method", "-d", "0.1")),
        (GETSOCKOPT, "getsockopt", ("latency", "method", "-d", "0.1")),
        (ACCEPT4, "accept4", ("calls", "-d", "0.1")),
        (FORK, "fork", ("fork",)),
        (TGKILL, "tgkill", ("backtraces",)),
    ],
)
def test_a_command_that_would_kill(
    number: int, call: str, words: tuple[str, ...]
) -> None:
    verb, *rest = words
    with under() as target:
        assert comes_true(lambda: awaits_connection(target.pid))
        assert target.target.step(forbidding([number]).hex()) == "done"
        is_refused(call, verb, target.pid, *rest)
        assert target.target.step() == "done"


def test_a_filter_that_is_added_later() -> None:
    """It is added to all threads between two commands of one connection."""
    with under(allowing_all()) as target, Process(target.pid) as process:
        with Agent(process) as agent:
            agent.call("backtraces")
            assert target.target.step(forbidding([PIPE2]).hex()) == "done"
            with pytest.raises(Refused, match="kills it for pipe2"):
                agent.call("eval", {"code": "1"})
            agent.call("backtraces")
        assert target.target.step() == "done"


def test_filters_that_return_errors_are_no_danger() -> None:
    with under(like_dockers(), forbidding([WAIT4], EPERM)) as target:
        assert run("eval", target.pid, "6 * 7")[0] == "42\n"
        assert target.target.step() == "done"


def beside(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command as in a sidecar: with the capabilities in docs/containers.md,
    and under Docker's filter, so that it cannot read the target's filter."""
    return run_program(in_sidecar("-c", MAIN, *words))


def in_sidecar(*words: object) -> tuple[str, ...]:
    kept = "-all,+sys_ptrace,+dac_override,+setuid,+setgid"
    return filtered(
        like_dockers(OF_SYS_PTRACE),
        *("setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}"),
        *(sys.executable, *map(str, words)),
    )


def test_a_filter_that_cannot_be_read(tmp_path: Path) -> None:
    """The agent answers with a note. The process is copied only with --yes."""
    path = tmp_path / "heap"
    with under(like_dockers()) as target:
        done = beside("eval", target.pid, "6 * 7")
        assert done.stdout == "42\n"
        note = " ".join(done.stderr.split())
        assert note.startswith(
            f"rbtrace-py: the seccomp filter of process {target.pid} cannot be read"
        )
        assert note.count("cannot be read") == 1
        for words in (("heapdump", target.pid, path), ("fork", target.pid)):
            done = beside(*words)
            assert done.returncode == 1
            assert "that cannot be read" in " ".join(done.stderr.split())
            assert "--yes" in done.stderr
        assert not path.exists()
        assert beside("heapdump", target.pid, path, "--yes").returncode == 0
        assert path.stat().st_size > 0
        assert target.target.step() == "done"


@pytest.fixture
def unaware() -> Iterator[Target]:
    program = str(TARGETS / "inside/unaware.rb")
    with contextlib.closing(
        Target(*filtered(like_dockers(), "ruby", program))
    ) as target:
        yield target


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("eval", ("6 * 7",)),
        ("memory", ()),
        ("backtraces", ()),
        ("fork", ()),
        ("calls", ("-d", "0.1")),
    ],
)
def test_yes_holds_for_attach_of_any_command(
    verb: str, rest: tuple[str, ...], unaware: Target
) -> None:
    words = (verb, unaware.pid, *rest, "--attach")
    done = beside(*words)
    assert (done.stdout, done.returncode) == ("", 1), done.stderr
    assert "use --yes" in " ".join(done.stderr.split())
    done = beside(*words, "--yes")
    assert done.returncode == 0, done.stderr
    assert unaware.step() == "done"


def test_yes_of_the_library(unaware: Target) -> None:
    code = f"""
import rbtrace_py
try:
    rbtrace_py.eval({unaware.pid}, "6 * 7", attach=True)
except rbtrace_py.NotConfirmed as error:
    print(error.hint)
print(rbtrace_py.attach_agent({unaware.pid}, yes=True).cost is not None)
"""
    done = run_program(in_sidecar("-c", code))
    assert done.stdout == "Pass yes=True to do it anyway\nTrue\n", done.stderr


def test_attaching_where_the_filter_cannot_be_read(unaware: Target) -> None:
    done = beside("attach", unaware.pid)
    assert (done.stdout, done.returncode) == ("", 1), done.stderr
    said = " ".join(done.stderr.split())
    assert "has a seccomp filter that cannot be read" in said
    assert "default filters of Docker, Podman, and Kubernetes" in said
    assert "--yes" in said
    done = beside("attach", unaware.pid, "--yes")
    assert done.returncode == 0, done.stderr
    assert run("eval", unaware.pid, "6 * 7")[0] == "42\n"
    assert unaware.step() == "done"
