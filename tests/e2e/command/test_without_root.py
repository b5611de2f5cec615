"""A tracer that is a user without root, with some capabilities or none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing

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
    """``rbtrace-py`` as a user that is not root."""

    def __init__(self, copy: PublicCopy) -> None:
        self._copy = copy

    def run(self, *words: object, caps: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command; caps: names of capabilities, separated by commas."""
        kept = ",".join(["-all", *(f"+{each}" for each in caps.split(",") if each)])
        rights = [f"--inh-caps={kept}", f"--ambient-caps={kept}"]
        return self._copy.run(as_user([*rights, *self._copy.command(*words)]))


@pytest.fixture
def user(public_copy: PublicCopy, root: None) -> User:
    return User(public_copy)


@pytest.fixture
def own(public_copy: PublicCopy, root: None) -> Iterator[Target]:
    """A process of the user's."""
    yield from _ruby(public_copy, USER)


@pytest.fixture
def foreign(public_copy: PublicCopy, root: None) -> Iterator[Target]:
    """A process of another user that is not root."""
    yield from _ruby(public_copy, OTHER)


def _ruby(copy: PublicCopy, uid: int, *words: str) -> Iterator[Target]:
    ruby = ["ruby", f"-I{copy.lib}", "-e", PROGRAM, *words]
    with closing(Target(*as_user(ruby, uid))) as target:
        yield target


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """The checks of ``doctor --json`` by name."""
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
