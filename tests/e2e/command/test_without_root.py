"""A tracer that runs as a user other than root, with some capabilities or none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from processes import Target
from public_copy import PublicCopy
from rubies import USER, as_user

OTHER = USER + 1
PROGRAM = """
require "tracepoint"
require "tracepoint/agent" if ARGV[0]
SPAN = Tracepoint.define_span(:checkout, {id: Integer}, provider: :shop)
$stdout.sync = true
puts "ready"
1.step { |id| SPAN.measure(id) { sleep 0.001 } }
"""


class User:
    """``rbtrace-py`` as a user other than root."""

    def __init__(self, copy: PublicCopy) -> None:
        self._copy = copy

    def run(self, *words: object, caps: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command. ``caps`` has names of capabilities, separated by commas."""
        kept = ",".join(["-all", *(f"+{each}" for each in caps.split(",") if each)])
        rights = [f"--inh-caps={kept}", f"--ambient-caps={kept}"]
        return self._copy.run(as_user([*rights, *self._copy.command(*words)]))


@pytest.fixture
def user(public_copy: PublicCopy, root: None) -> User:
    return User(public_copy)


@pytest.fixture
def own(public_copy: PublicCopy, root: None) -> Iterator[Target]:
    """A process of this user."""
    yield from _ruby(public_copy, USER)


@pytest.fixture
def foreign(public_copy: PublicCopy, root: None) -> Iterator[Target]:
    """A process of another user, who is not root."""
    yield from _ruby(public_copy, OTHER)


def _ruby(copy: PublicCopy, uid: int, *words: str) -> Iterator[Target]:
    ruby = ["ruby", f"-I{copy.lib}", "-e", PROGRAM, *words]
    with closing(Target(*as_user(ruby, uid))) as target:
        yield target


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Return the checks of ``doctor --json`` by name."""
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_doctor_accepts_a_user_without_root(user: User, own: Target) -> None:
    done = user.run("doctor", own.pid, "--json")
    found = checks(done)
    assert done.returncode == 0, done.stdout
    assert found["rights"]["status"] == "warn"
    assert "CAP_BPF and CAP_PERFMON for probes" in found["rights"]["advice"]
    assert found["Ruby stacks"]["status"] == found["gem"]["status"] == "ok"


def test_the_note_names_the_missing_capabilities(user: User, own: Target) -> None:
    done = user.run("stacks", own.pid, "--mode", "wall", "-d", "0.1")
    (note,) = (line for line in done.stderr.splitlines() if "memory" in line)
    assert "the BPF engine needs CAP_BPF and CAP_PERFMON" in note
    assert "Operation not permitted" not in note
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("caps", "missing"), [("bpf", "CAP_PERFMON"), ("perfmon", "CAP_BPF")]
)
def test_only_the_missing_capability_is_named(
    user: User, own: Target, caps: str, missing: str
) -> None:
    done = user.run("count", own.pid, "checkout", "-d", "0.1", caps=caps)
    assert f"or with {missing};" in " ".join(done.stderr.split())
    assert done.returncode == 3


def test_probes_of_ones_own_process_need_bpf_alone(user: User, own: Target) -> None:
    words = ("count", own.pid, "checkout", "-d", "0.3", "--json")
    done = user.run(*words, caps="bpf,perfmon")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["count"] > 0


@pytest.fixture
def foreign_agent(public_copy: PublicCopy, root: None) -> Iterator[Target]:
    """A process of another user, with the agent."""
    yield from _ruby(public_copy, OTHER, "agent")


def test_the_error_names_the_capability_that_helps(user: User, foreign: Target) -> None:
    done = user.run("dump", foreign.pid)
    said = " ".join(done.stderr.split())
    assert f"Run as {OTHER}, as root, or with CAP_SYS_PTRACE" in said
    assert done.returncode == 3
    assert user.run("dump", foreign.pid, caps="sys_ptrace").returncode == 0


@pytest.mark.parametrize("target", ["foreign", "foreign_agent"])
def test_doctor_of_another_users_process(
    user: User, target: str, request: pytest.FixtureRequest
) -> None:
    """The gem is loaded, but its probes are in an unreadable file."""
    pid = request.getfixturevalue(target).pid
    found = checks(user.run("doctor", pid, "--json", caps="sys_ptrace,bpf,perfmon"))
    assert found["stacks"]["status"] == found["memory"]["status"] == "ok"
    assert found["files"]["status"] == found["gem"]["status"] == "warn"
    assert "has loaded the gem" in found["gem"]["advice"]
    assert "Gemfile" not in found["gem"]["advice"]
    for check in ("files", "rights"):
        said = found[check]["text"] + found[check]["advice"]
        assert "CAP_CHECKPOINT_RESTORE and CAP_DAC_READ_SEARCH" in said


def test_a_probe_in_a_file_that_cannot_be_opened(
    user: User, foreign_agent: Target
) -> None:
    words = ("count", foreign_agent.pid, "checkout")
    done = user.run(*words, caps="sys_ptrace,bpf,perfmon")
    said = " ".join(done.stderr.split())
    assert "without CAP_CHECKPOINT_RESTORE and CAP_DAC_READ_SEARCH" in said
    assert done.returncode == 4


@pytest.mark.parametrize("caps", ["sys_ptrace", "sys_ptrace,dac_read_search"])
def test_an_agent_that_another_user_cannot_reach(
    user: User, foreign_agent: Target, caps: str
) -> None:
    done = user.run("eval", foreign_agent.pid, "1 + 1", caps=caps)
    said = " ".join(done.stderr.split())
    assert f"answers only root and user {OTHER}" in said
    assert "no agent" not in said
    assert (done.stdout, done.returncode) == ("", 3)


@pytest.mark.parametrize("command", ["latency", "count"])
def test_a_selector_that_root_gets_refused_too(
    user: User, own: Target, command: str
) -> None:
    done = user.run(command, own.pid, "Object#work")
    said = " ".join(done.stderr.split())
    assert "no probe matches Object#work Select methods with -m" in said
    assert "sudo" not in said
    assert done.returncode == 4


def test_the_hook_that_attach_loaded_is_not_reported(user: User, own: Target) -> None:
    """Its file is deleted, and only root can open it."""
    assert user.run("attach", own.pid).returncode == 0
    assert user.run("detach", own.pid).returncode == 0
    assert ".rbtrace-" in Path(f"/proc/{own.pid}/maps").read_text()
    listed = user.run("probes", own.pid)
    assert (listed.stderr, listed.returncode) == ("", 0)
    assert "checkout__end" in listed.stdout
    assert checks(user.run("doctor", own.pid, "--json"))["files"]["status"] == "ok"
