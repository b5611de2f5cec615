"""Processes into which no code is injected: they continue undisturbed."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from injecting import PROGRAM, Bell, bell, injected, ring, state

from filtering import allowing_all, filtered, forbidding, like_dockers
from processes import TIMEOUT, Target, await_state
from rbtrace_py.agent import refusal
from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.agent.detour import Stopped
from rbtrace_py.agent.inject import NotAcknowledged, check, inject
from rbtrace_py.agent.refusal import Refused
from rbtrace_py.agent.text import ROOM_SIZE, Text, is_room, room_address
from rbtrace_py.errors import NoSuchTarget, NotPermitted, NotRuby, VmNotStarted
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.tracee import Tracee
from rbtrace_py.session.inside.injection import ruby_addresses

__all__ = ["bell"]


@pytest.fixture
def target(root: None) -> Iterator[Target]:
    with injected("ruby") as found:
        yield found.target


def untouched(process: Process, ruby: RubyAddresses, bell: Bell) -> None:
    """Check that it was never seized, and that its memory is unchanged."""
    steps: list[str] = []
    with pytest.raises(Refused) as caught:
        inject(process, ruby, bell.code, bell.has_rung, 5, steps.append)
    assert caught.value.hint
    assert steps == []
    assert room_is_empty(process)


def room_of(process: Process) -> int:
    return room_address(ruby_addresses(process).vm)


def room_is_empty(process: Process) -> bool:
    """Return whether the room is empty or missing."""
    address = room_of(process)
    with MemoryFile(process) as memory:
        return not is_room(process, address) or not any(memory.read(address, ROOM_SIZE))


@contextmanager
def under(program: bytes, kind: str) -> Iterator[Target]:
    """Run injected.rb under a seccomp filter."""
    target = Target(*filtered(program, "ruby", PROGRAM, kind))
    try:
        yield target
    finally:
        target.close()


@pytest.mark.parametrize("kind", ["ruby", "sleep", "select"])
@pytest.mark.parametrize("program", [allowing_all(), like_dockers()])
def test_a_filter_that_lets_us(program: bytes, kind: str, bell: Bell) -> None:
    with under(program, kind) as target:
        before = state(target.pid)
        ring(target.pid, bell)
        assert state(target.pid) == before
        assert target.step() == "right"


@pytest.mark.parametrize(
    ("numbers", "name"),
    [([219], "restart_syscall"), ([41], "socket"), ([88, 319], "symlink")],
)
def test_a_filter_that_kills(numbers: list[int], name: str, bell: Bell) -> None:
    """The process is in a sleep, which the kernel may resume with
    ``restart_syscall``."""
    program = forbidding(numbers)
    with under(program, "sleep") as target, Process(target.pid) as process:
        before = state(target.pid)
        with pytest.raises(Refused, match=f"forbids {name}$"):
            inject(process, ruby_addresses(process), bell.code, bell.has_rung, 5)
        assert room_is_empty(process)
        assert state(target.pid) == before
        assert target.step() == "right"


def test_a_filter_that_is_installed_meanwhile(bell: Bell) -> None:
    """The user was not asked about a filter that may be unreadable."""
    with under(allowing_all(), "ruby") as target:
        with Process(target.pid) as process:
            before = dataclasses.replace(ruby_addresses(process), filters=0)
            untouched(process, before, bell)
        assert target.step() == "right"


CAN_READ = """
import os, sys
sys.path.insert(0, sys.argv[1])
from rbtrace_py.linux.ptrace.seccomp import can_read_filters
if len(sys.argv) > 2:
    os.setresuid(65534, 65534, 65534)
print(can_read_filters())
"""


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((), (), "True\n"),
        ((), ("as another",), "False\n"),
        (("unshare", "--user", "--map-root-user"), (), "False\n"),
        (filtered(allowing_all()), (), "False\n"),
    ],
    ids=["root", "user", "user namespace", "filtered"],
)
def test_who_can_read_filters(
    before: tuple[str, ...], after: tuple[str, ...], found: str, root: None
) -> None:
    tracer = str(Path(__file__).resolve().parents[3] / "tracer")
    command = [*before, sys.executable, "-c", CAN_READ, tracer, *after]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout == found, done.stderr


def test_one_that_is_stopped(target: Target, bell: Bell) -> None:
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        os.kill(target.pid, signal.SIGSTOP)
        os.waitpid(target.pid, os.WUNTRACED)
        untouched(process, ruby, bell)
        os.kill(target.pid, signal.SIGCONT)
        ring(target.pid, bell)
    assert target.step() == "right"


def test_one_that_is_stopped_just_then(target: Target, bell: Bell) -> None:
    """It stays stopped, and the code does not run when it continues."""

    def at(step: str) -> None:
        if step == "text":
            os.kill(target.pid, signal.SIGSTOP)

    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        # It is Refused if it was diverted before it got the signal.
        with pytest.raises((Stopped, Refused)):
            inject(process, ruby, bell.code, bell.has_rung, 5, at)
        await_state(target.pid, "T")
        os.kill(target.pid, signal.SIGCONT)
        assert room_is_empty(process)
    assert target.step() == "right"
    assert not bell.has_rung()


def test_one_with_little_memory_left(
    target: Target, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its cgroup's memory runs out, the kernel kills the process, not the tracer."""
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        monkeypatch.setattr(refusal, "memory_room", lambda process: (8 << 20) - 1)
        untouched(process, ruby, bell)
        monkeypatch.setattr(refusal, "memory_room", lambda process: None)
        check(process, ruby)
    assert target.step() == "right"


def test_one_that_is_traced(target: Target, bell: Bell) -> None:
    held, let_go = threading.Event(), threading.Event()
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)

        def hold() -> None:
            Tracee(process)
            held.set()
            let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        steps: list[str] = []
        with pytest.raises(NotPermitted, match="is traced by process"):
            inject(process, ruby, bell.code, bell.has_rung, 5, steps.append)
        assert steps == []
        let_go.set()
        thread.join()
    assert target.step() == "right"


def test_a_zombie(bell: Bell) -> None:
    process = subprocess.Popen(["ruby", "-e", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NoSuchTarget):
        Process(process.pid)
    process.wait()


def test_one_that_is_not_ruby(bell: Bell) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        with Process(process.pid) as opened, pytest.raises(NotRuby):
            ruby_addresses(opened)
    finally:
        process.kill()
        process.wait()


def test_a_ruby_without_a_vm(target: Target, bell: Bell) -> None:
    with Process(target.pid) as process:
        ruby = dataclasses.replace(ruby_addresses(process), vm=0)
        with pytest.raises(VmNotStarted):
            inject(process, ruby, bell.code, bell.has_rung)


@pytest.mark.parametrize("missing", ["eval_string", "register_one"])
def test_a_ruby_without_the_functions(missing: str, target: Target, bell: Bell) -> None:
    with Process(target.pid) as process:
        without = {missing: None, "trigger": None}
        ruby = dataclasses.replace(ruby_addresses(process), **without)
        untouched(process, ruby, bell)


def test_another_users(target: Target) -> None:
    """An ordinary user requests it in a separate process."""
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
    script = f"""
import os, sys
os.setresgid(65534, 65534, 65534)
os.setgroups([])
sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / "tracer")!r})
from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.agent.inject import check
from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux.process import Process
os.setresuid(65534, 65534, 65534)
try:
    with Process({target.pid}) as process:
        check(process, {ruby!r})
except NotPermitted as error:
    print(error.exit_code, bool(error.hint))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.stdout == "3 True\n", done.stderr
    assert target.step() == "right"


def test_one_that_does_not_answer(target: Target, bell: Bell) -> None:
    """After the time limit, the code is removed and cannot run any more."""
    before = state(target.pid)
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        with pytest.raises(NotAcknowledged) as caught:
            inject(process, ruby, b"nil", bell.has_rung, 0.5)
        assert caught.value.hint
        assert room_is_empty(process)
    assert state(target.pid) == before
    assert target.step() == "right"


def test_one_that_ends_meanwhile(bell: Bell) -> None:
    with injected("ruby") as found, Process(found.pid) as process:
        ruby = ruby_addresses(process)
        code = b"::Process.kill(:KILL, $$)"
        with pytest.raises(NoSuchTarget):
            inject(process, ruby, code, bell.has_rung, 30)
        assert found.target.process.wait(TIMEOUT) == -signal.SIGKILL


def test_a_syntax_error_harms_nobody(target: Target, bell: Bell) -> None:
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        with pytest.raises(NotAcknowledged):
            inject(process, ruby, b"::Thread.start { (", bell.has_rung, 0.5)
    ring(target.pid, bell)
    assert target.step() == "right"


def test_check_alone(target: Target) -> None:
    with Process(target.pid) as process:
        check(process, ruby_addresses(process))


def anonymous_near(process: Process, address: int) -> list[tuple[int, int]]:
    """Return the mappings within 2^40 bytes of the address."""
    return [
        (m.start, m.end - m.start)
        for m in mappings(process)
        if abs(m.start - address) < 1 << 40
    ]


def test_room_is_mapped_once_and_stays(target: Target, bell: Bell) -> None:
    with Process(target.pid) as process:
        address = room_of(process)
        for _ in range(3):
            ring(target.pid, bell)
            assert anonymous_near(process, address) == [(address, ROOM_SIZE)]
        assert room_is_empty(process)
    assert target.step() == "right"


def test_a_text_of_a_killed_tracer_makes_room(target: Target, bell: Bell) -> None:
    ring(target.pid, bell)
    with Process(target.pid) as process, MemoryFile(process) as memory:
        address = room_of(process)
        Text(memory, address, b"1" * (ROOM_SIZE - 1))
        text = Text(memory, address, b"2")
        assert memory.read(address, ROOM_SIZE).rstrip(b"\0") == b"2"
        text.blank()
        assert room_is_empty(process)
        for wrong in (b"", b"a\0b", b"x" * ROOM_SIZE):
            with pytest.raises(ValueError, match="must fit"):
                Text(memory, address, wrong)
    assert target.step() == "right"


def test_no_memory_for_the_room(bell: Bell) -> None:
    """The process has reached its own limit and continues. Without the limit, it
    works."""
    with injected("gets") as target, Process(target.pid) as process:
        before = resource.prlimit(target.pid, resource.RLIMIT_AS)
        used = sum(m.end - m.start for m in mappings(process))
        limits = (used + ROOM_SIZE // 2, before[1])
        resource.prlimit(target.pid, resource.RLIMIT_AS, limits)
        with pytest.raises(Refused, match="it cannot map"):
            inject(process, ruby_addresses(process), bell.code, bell.has_rung, 5)
        resource.prlimit(target.pid, resource.RLIMIT_AS, before)
        ring(target.pid, bell)
        assert target.end() == "right"


def test_something_else_is_mapped_there(target: Target) -> None:
    with Process(target.pid) as process:
        place = next(m for m in mappings(process) if m.is_executable).start
        with pytest.raises(Refused, match="something else is mapped"):
            is_room(process, place)
        assert not is_room(process, room_of(process))
    assert target.step() == "right"
