"""The agent is loaded into programs of many kinds, and their results stay right."""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from injecting import build_registers, injected, settles, state

from processes import ROOT, Target, comes_true, is_soak, read_line, times
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.inject import NotAcknowledged
from rbtrace_py.agent.loading import LoaderLinks, NotLoaded, agent_text, alone
from rbtrace_py.agent.place import NoAgent, connect
from rbtrace_py.agent.protocol import MalformedAnswer
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import Evaluated
from rbtrace_py.session.inside.attach import attach, detach
from rbtrace_py.session.inside.commands import evaluate
from rubies import HERE, NAMES, USER, chroot, minor

pytestmark = pytest.mark.usefixtures("root")

KILLED = Path(__file__).with_name("killed_loading.py")
LIMIT = 600.0
KINDS = (
    "ruby",
    "bignum",
    "malloc",
    "gc",
    "registers",
    "sleep",
    "gets",
    "select",
    "mutex",
    "threads",
    "queue",
    "trap",
    "forked",
)


def pairs(kinds: Sequence[str]) -> list[Any]:
    """Pair each kind with this machine's Ruby and one chroot, or in a soak with all
    of them."""
    return [(kind, HERE) for kind in kinds] + [
        chroot(kind, ruby)
        for number, kind in enumerate(kinds)
        for ruby in (NAMES if is_soak() else [NAMES[number % len(NAMES)]])
    ]


def silent(line: str) -> None:
    pass


def words(kind: str, folder: Path) -> list[str]:
    if kind != "registers":
        return [kind]
    # The chroots see the host's /tmp.
    return [kind, str(build_registers(folder))]


def value(pid: int, code: str) -> str:
    with Process(pid) as process:
        found = evaluate(
            process, code, lambda data: None, lambda data: None, seconds=LIMIT
        )
    assert isinstance(found, Evaluated), found
    return found.value


def folders(pid: int) -> set[str]:
    """Return directories for the agent's files, including those of other tests."""
    found = set()
    for place in ("tmp", "var/tmp", "dev/shm", "run"):
        path = f"/proc/{pid}/root/{place}"
        if os.path.isdir(path):
            names = os.listdir(path)
            found |= {
                f"{path}/{name}" for name in names if name.startswith(".rbtrace-")
            }
    return found


def go_away(found: set[str]) -> bool:
    return comes_true(lambda: not any(map(os.path.exists, found)), LIMIT)


def test_the_agent_is_joined_to_one_file() -> None:
    source = ROOT / "ext" / "agent"
    parts = sorted((source / "agent").glob("*.rb"))
    _, agent = agent_text().encode().split(b"\n__END__\n")
    assert agent.startswith(b"# frozen_string_literal: true\n")
    assert b"require_relative" not in agent
    assert b"__dir__" not in b"".join(path.read_bytes() for path in parts)
    place = -1
    required = re.findall(
        '^require_relative "(.+)"$', (source / "agent.rb").read_text(), re.M
    )
    assert sorted(required) == [f"agent/{path.stem}" for path in parts]
    for name in required:
        lines = (source / f"{name}.rb").read_bytes().splitlines()[2:]
        found = agent.find(b"\n".join(lines))
        assert found > place, name
        place = found


@pytest.mark.parametrize(("kind", "ruby"), pairs(KINDS))
def test_attach_ask_detach(kind: str, ruby: str, tmp_path: Path) -> None:
    with injected(*words(kind, tmp_path), ruby=ruby) as target:
        before = state(target.pid)
        for _ in range(times(5)):
            with Process(target.pid) as process:
                found = attach(process, silent, LIMIT)
                assert found.cost is not None
                assert found.without_hook is None
                assert found.ruby.startswith(f"ruby {minor(ruby)}.")
                assert state(target.pid) == before
                pid = value(target.pid, "Process.pid")
                assert int(pid) in (target.pid, 1)
                assert detach(process, limit=LIMIT).tracer is None
        assert settles(target.pid, before)
        assert target.end() == "right"


EXPECTED = (
    "Tracepoint::Agent.instance_variable_get(:@server).instance_eval { @expected }"
)


def test_the_proof_comes_with_the_first_request() -> None:
    """The text at the address reported before creates it and is consumed."""
    with injected("sleep") as target, Process(target.pid) as process:
        attach(process, silent, LIMIT)
        assert value(target.pid, EXPECTED) == "nil"


def test_somebody_else_has_our_text() -> None:
    """Another PID namespace may have it at the same address, so another one is
    requested."""

    def be_first(step: str) -> None:
        if step == "loaded":
            assert value(target.pid, EXPECTED) == "nil"

    with injected("sleep") as target, Process(target.pid) as process:
        assert attach(process, silent, LIMIT, at=be_first).cost


def test_somebody_else_comes_first_and_says_nothing() -> None:
    with (
        injected("ruby") as target,
        Process(target.pid) as process,
        ThreadPoolExecutor() as pool,
    ):
        silent_one = pool.submit(connected, process)
        assert attach(process, silent, LIMIT).cost
        with silent_one.result():
            assert value(target.pid, "6 * 7") == "42"


def connected(process: Process) -> socket.socket:
    """Connect as soon as a socket exists."""
    found = []

    def is_there() -> bool:
        with suppress(NoAgent):
            found.append(connect(process))
        return bool(found)

    assert comes_true(is_there, pause=0.0001)
    return found[0]


def test_a_text_that_is_not_ours() -> None:
    with injected("sleep") as target, Process(target.pid) as process:
        attach(process, silent, LIMIT)
        code = (
            "$server = Tracepoint::Agent.instance_variable_get(:@server);"
            "$server.expect(1).tap { $other = $server.proof_of(1) }"
        )
        with pytest.raises(MalformedAnswer, match="another text"):
            Agent(process, int(value(target.pid, code)))
        with pytest.raises(MalformedAnswer, match="without proof"):
            Agent(process, 0)
        assert value(target.pid, "6 * 7") == "42"


def test_a_sleep_is_not_cut_short() -> None:
    with injected("timed", "1.5") as target:
        assert target.target.step() == "sleeping"
        with Process(target.pid) as process:
            attach(process, silent, LIMIT)
        took = read_line(target.target.process.stdout)
        assert int(took.split()[1]) >= 1500


def kill_at(step: int | str, pid: int) -> str:
    """Attach and be killed at a step. Return its name, or ``done`` beyond the last.

    A tracer that was killed earlier may have loaded the agent. In this case, detach it.
    """
    while (name := _kill_at(step, pid)) == "there":
        pass
    return name


def _kill_at(step: int | str, pid: int) -> str:
    done = subprocess.run(
        [sys.executable, str(KILLED), str(pid), str(step)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.stdout, done.stderr
    return done.stdout.strip()


def steps_of(seed: str) -> Iterable[int]:
    """Return the steps at which to be killed: all in a soak, or four in a test."""
    if is_soak():
        return itertools.count()
    return [*sorted(random.Random(seed).sample(range(18), 3)), 18]


@pytest.mark.parametrize(
    ("kind", "ruby"),
    pairs(("ruby", "sleep", "gc", "select") if is_soak() else ("ruby", "gets")),
)
def test_killed_at_each_step(kind: str, ruby: str) -> None:
    """The program continues, the files are removed, and the next tracer can attach."""
    with injected(kind, ruby=ruby) as target:
        before, left = state(target.pid), folders(target.pid)
        for step in steps_of(f"{kind}{ruby}"):
            if (name := kill_at(step, target.pid)) == "done":
                break
            assert settles(target.pid, before), name
            assert go_away(folders(target.pid) - left), name
        assert step >= 18
        with Process(target.pid) as process:
            assert attach(process, silent, LIMIT).without_hook is None
            assert value(target.pid, "6 * 7") == "42"
            detach(process, limit=LIMIT)
        assert settles(target.pid, before)
        assert target.end() == "right"


def test_killed_while_the_process_loads_its_files() -> None:
    """The files are removed before the hook is loaded: half an agent would stay
    forever.

    The process is busy, so it waits for the GVL at each file.
    """
    with injected("ruby") as target:
        left = folders(target.pid)
        assert kill_at("acknowledged", target.pid) == "acknowledged"
        assert go_away(folders(target.pid) - left)
        with Process(target.pid) as process:
            assert attach(process, silent, LIMIT).without_hook is None
        assert value(target.pid, "6 * 7") == "42"
        assert target.end() == "right"


EXECUTING = """
$stdout.sync = true
Thread.new { gets; exec("sh", "-c", "echo other; read line; echo right") }
puts "ready"
sleep
"""
STEPS = ("placed", "seized", "stopped", "text", "call", "acknowledged", "loaded")


@pytest.mark.parametrize("step", STEPS)
def test_it_becomes_another_program(step: str) -> None:
    """Addresses found in the old program are not used in the new one."""
    target = Target("ruby", "-e", EXECUTING)

    def at(now: str) -> None:
        if now == step:
            assert target.step() == "other"

    try:
        other = pytest.raises(RbtraceError, match=r"now runs another program$")
        with Process(target.pid) as process, other:
            attach(process, silent, LIMIT, at=at)
        assert target.step() == "right"
    finally:
        target.close()


@pytest.fixture
def said(tmp_path: Path) -> Iterator[tuple[LoaderLinks, Path]]:
    """Yield a reader of a file of a process (this one), and the path of that file."""
    with (
        Process(os.getpid()) as process,
        LoaderLinks(process, str(tmp_path), process.program) as reader,
    ):
        yield reader, tmp_path / "said"


def test_what_the_process_said(said: tuple[LoaderLinks, Path]) -> None:
    reader, path = said
    assert not reader.has_begun()
    path.with_name("begun").symlink_to("begun")
    assert reader.has_begun()
    with pytest.raises(NotAcknowledged):
        reader.await_end(0)
    for text, address in (("done", None), ("done 140231", 140231)):
        path.symlink_to(text)
        assert reader.await_end(0) == address
        path.unlink()
    path.symlink_to("done")
    for text, shown in (
        ("Error: \x1b[2J\nmore", r"agent: Error: \\x1b\[2J$"),
        ("\n", "$"),
        ("done 14x", "agent: done 14x$"),
    ):
        path.unlink()
        path.symlink_to(text)
        with pytest.raises(NotLoaded, match=shown):
            reader.await_end(0)


def test_only_the_users_own_link_is_a_report(said: tuple[LoaderLinks, Path]) -> None:
    """No file is opened, and a link of another user is ignored."""
    reader, path = said
    for make in (path.touch, path.mkdir, lambda: os.mkfifo(path)):
        make()
        with pytest.raises(NotAcknowledged):
            reader.await_end(0)
        path.rmdir() if path.is_dir() else path.unlink()
    path.symlink_to("done")
    os.chown(path, USER, USER, follow_symlinks=False)
    with pytest.raises(NotAcknowledged):
        reader.await_end(0)


def test_one_tracer_at_a_time() -> None:
    with (
        Process(os.getpid()) as process,
        alone(process, 0),
        pytest.raises(RbtraceError, match="another tracer is attaching"),
        alone(process, 0),
    ):
        pass


_LOCKS = """
import fcntl, os, sys
os.setuid(int(sys.argv[2]))
fds = [os.open(f"/proc/{sys.argv[1]}/{name}", os.O_RDONLY) for name in (".", "stat")]
for fd in fds:
    fcntl.flock(fd, fcntl.LOCK_EX)
try:
    os.open(f"/proc/{sys.argv[1]}/environ", os.O_RDONLY)
    print("can open", flush=True)
except PermissionError:
    print("ready", flush=True)
sys.stdin.read()
"""


def test_another_users_lock_does_not_block_attaching(root: None) -> None:
    """Any user can lock a file that any user can open."""
    words = [sys.executable, "-c", _LOCKS, str(os.getpid()), str(USER)]
    with Process(os.getpid()) as process, closing(Target(*words)) as other:
        assert other.ready == "ready"
        with alone(process, 0):
            pass
