"""Processes into which nothing is put; they go on as if nobody had asked."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from injecting import PROGRAM, Bell, bell, injected, ring, state

from processes import TIMEOUT, Target
from rbtrace_py.agent.addresses import RubyAddresses, find_landing
from rbtrace_py.agent.detour import Stopped
from rbtrace_py.agent.inject import NotAcknowledged, check, inject
from rbtrace_py.agent.refusal import Refused
from rbtrace_py.agent.text import MARK, NoRoom, Text
from rbtrace_py.errors import NoSuchTarget, NotPermitted, NotRuby, VmNotStarted
from rbtrace_py.linux.memfile import MemoryFile
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.tracee import Tracee
from rbtrace_py.session.injection import ruby_addresses

__all__ = ["bell"]


@pytest.fixture
def target(root: None) -> Iterator[Target]:
    with injected("ruby") as found:
        yield found.target


def untouched(process: Process, ruby: RubyAddresses, bell: Bell) -> None:
    """It was never seized, and nothing stands in its memory."""
    steps: list[str] = []
    with pytest.raises(Refused) as caught:
        inject(process, ruby, bell.code, bell.has_rung, 5, steps.append)
    assert caught.value.hint
    assert steps == []
    assert rooms_are_empty(process)


def rooms_are_empty(process: Process) -> bool:
    landing = find_landing(process)
    assert landing
    with MemoryFile(process) as memory:
        return not any(any(memory.read(*room)) for room in landing.rooms)


FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Run a program under a filter of system calls that allows all of them."""


def test_a_filter_of_system_calls(bell: Bell) -> None:
    target = Target(sys.executable, "-c", FILTER, "ruby", PROGRAM, "ruby")
    try:
        with Process(target.pid) as process:
            untouched(process, ruby_addresses(process), bell)
        assert target.step() == "right"
    finally:
        target.close()


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
    """It stays stopped, and the code does not run when it goes on."""

    def at(step: str) -> None:
        if step == "text":
            os.kill(target.pid, signal.SIGSTOP)

    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        # The second where it was led away before it got that signal.
        with pytest.raises((Stopped, Refused)):
            inject(process, ruby, bell.code, bell.has_rung, 5, at)
        end = time.monotonic() + TIMEOUT
        while Path(f"/proc/{target.pid}/stat").read_text().split()[2] != "T":
            assert time.monotonic() < end
        os.kill(target.pid, signal.SIGCONT)
        assert rooms_are_empty(process)
    assert target.step() == "right"
    assert not bell.has_rung()


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
    """Asked by nobody in particular, in a process of its own."""
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
    """After the time limit the code is gone, and cannot run any more."""
    before = state(target.pid)
    with Process(target.pid) as process:
        ruby = ruby_addresses(process)
        with pytest.raises(NotAcknowledged) as caught:
            inject(process, ruby, b"nil", bell.has_rung, 0.5)
        assert caught.value.hint
        assert rooms_are_empty(process)
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


def test_texts_of_those_who_were_killed_make_room(target: Target) -> None:
    """Each beside the others while there is room; then in their place."""
    with Process(target.pid) as process, MemoryFile(process) as memory:
        landing = find_landing(process)
        assert landing
        room = landing.rooms[0]
        texts = [Text(memory, [room], b"%03d" % i * 300) for i in range(20)]
        assert memory.read(texts[-1].address, 901) == b"019" * 300 + b"\0"
        assert len({text.address for text in texts}) < 20
        assert memory.read(room[0], room[1]).lstrip(b"\0").startswith(MARK)
        for text in texts:
            text.blank()
        assert rooms_are_empty(process)
        with pytest.raises(NoRoom):
            Text(memory, landing.rooms, b"x" * 5000)
        memory.write(room[0], b"something else")
        with pytest.raises(NoRoom):
            Text(memory, [room], b"x")
        memory.write(room[0], bytes(14))
    assert target.step() == "right"
