"""A diverted thread: its registers, system calls, and signals are as before."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import (
    TARGETS,
    TIMEOUT,
    Target,
    await_state,
    comes_true,
    read_line,
    task_state,
    times,
)
from rbtrace_py.agent.addresses import Landing, find_landing
from rbtrace_py.agent.detour import Busy, Detour, Late
from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux.binaries import group_files, open_mapped
from rbtrace_py.linux.elf.symbols import SymbolTable, load_bias
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.tracee import Tracee

pytestmark = pytest.mark.usefixtures("root")
DONE = threading.Event()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("detour") / "detoured"
    source = str(TARGETS / "inside/detoured.c")
    subprocess.run(["gcc", "-O1", "-Wall", source, "-o", str(output)], check=True)
    return str(output)


@contextmanager
def calling(program: str, *words: object) -> Iterator[Target]:
    """The program, in the call that it should make."""
    target = Target(program, *map(str, words))
    try:
        assert target.step() == "calling"
        if words[0] != "spin":
            await_state(target.pid, "S")
        yield target
    finally:
        target.close()


def in_a_thread(work: Callable[[], None]) -> None:
    """Run a function in one thread, as ptrace requires, and raise its exception
    here."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def landing_of(process: Process) -> Landing:
    landing = find_landing(process)
    assert landing
    return landing


def detour(
    pid: int, at: Callable[[str], None] = lambda step: None, runs: int = 1
) -> Sequence[int]:
    """Divert a thread through sigaction. Return the reported handlers of SIGUSR1 and
    SIGRTMIN."""
    found: list[int] = []
    with Process(pid) as process, MemoryFile(process) as memory:
        landing = landing_of(process)
        assert landing.sigaction

        def work() -> None:
            deadline = time.monotonic() + 60
            tracee = Tracee(process)
            led = Detour(process, tracee, memory, landing.restore, deadline, at)
            led.stop()
            place = led.reserve(160)
            for number in (signal.SIGUSR1, signal.SIGRTMIN):
                for _ in range(runs):
                    led.run(landing.sigaction or 0, number, 0, place)
                found.append(int.from_bytes(led.read(place, 8), "little"))
            led.finish()

        in_a_thread(work)
    return found


@pytest.mark.parametrize("kind", ["nanosleep", "poll", "futex"])
def test_a_call_with_a_time_limit_takes_as_long(kind: str, program: str) -> None:
    with calling(program, kind, 700) as target:
        for _ in range(20):
            first, second = detour(target.pid)
            assert first == second > 0
        result, error, took = map(int, read_line(target.process.stdout).split())
        ends = {"nanosleep": (0, 0), "poll": (0, 0), "futex": (-1, errno.ETIMEDOUT)}
        assert (result, error) == ends[kind]
        assert 700 <= took < 1200
        assert target.step() == "signals 0 0"


@pytest.mark.parametrize("kind", ["read", "epoll", "recv", "read socket"])
def test_a_call_without_one_goes_on(kind: str, program: str) -> None:
    with calling(program, kind) as target:
        for runs in (1, 2, 3):
            detour(target.pid, runs=runs)
            await_state(target.pid, "S")
        result, error, _ = map(int, target.step("x").split())
        assert (result, error) == (1, 0)


def test_a_stop_alone_leaves_no_trace_either(program: str) -> None:
    """The process may be busy, and is released."""
    with calling(program, "epoll") as target, Process(target.pid) as process:
        with MemoryFile(process) as memory:

            def work() -> None:
                deadline = time.monotonic() + 60
                led = Detour(
                    process, Tracee(process), memory, 0, deadline, lambda step: None
                )
                led.stop()
                led.finish()

            in_a_thread(work)
        await_state(target.pid, "S")
        assert target.step("x").split()[:2] == ["1", "0"]


@pytest.mark.parametrize("kind", ["read", "epoll", "nanosleep", "poll", "pause"])
def test_a_signal_that_comes_meanwhile_ends_the_call(kind: str, program: str) -> None:
    """Its handler runs once, and the call ends with EINTR, as without a tracer."""
    for step in ("interrupted", "saved", "masked", "call", "mask restored", "restored"):
        with calling(program, kind, 60000) as target:
            sent: list[str] = []

            def at(name: str, step: str = step, sent: list[str] = sent) -> None:
                if name == step and not sent:
                    sent.append(name)
                    os.kill(target.pid, signal.SIGUSR1)

            detour(target.pid, at)
            assert sent == [step]
            result, error, _ = map(int, read_line(target.process.stdout).split())
            assert (result, error) == (-1, errno.EINTR), step
            assert target.step() == "signals 1 0"


def test_signals_at_every_step_are_all_handled(program: str) -> None:
    """The signals are of a queued kind, and the call continues after them."""
    steps: list[str] = []
    with calling(program, "read") as target:

        def at(name: str) -> None:
            steps.append(name)
            os.kill(target.pid, signal.SIGRTMIN)

        for _ in range(times(100)):
            detour(target.pid, at)
        assert target.step("x").split()[:2] == ["1", "0"]
        assert target.step() == f"signals 0 {len(steps)}"
        assert len(set(steps)) >= 15


def test_signals_at_every_step_while_the_target_computes(program: str) -> None:
    steps: list[str] = []
    with calling(program, "spin") as target:

        def at(name: str) -> None:
            steps.append(name)
            os.kill(target.pid, signal.SIGRTMIN)

        for _ in range(times(100)):
            detour(target.pid, at)
        os.kill(target.pid, signal.SIGUSR1)
        assert read_line(target.process.stdout) == "wrong 0"
        assert target.step() == f"signals 1 {len(steps)}"


@pytest.mark.parametrize(
    "step", ["stopped", "saved", "sent", "masked", "call", "going back"]
)
def test_stopped_on_the_way(step: str, program: str) -> None:
    """It returns first and stays stopped, as the sender of the signal wants."""
    with calling(program, "read") as target:

        def at(name: str) -> None:
            if name == step and DONE not in seen:
                seen.append(DONE)
                os.kill(target.pid, signal.SIGSTOP)

        seen: list[threading.Event] = []
        detour(target.pid, at)
        await_state(target.pid, "T")
        os.kill(target.pid, signal.SIGCONT)
        assert target.step("x").split()[:2] == ["1", "0"]
        assert target.step() == "signals 0 0"


def test_killed_on_the_way(program: str) -> None:
    steps: list[str] = []
    with calling(program, "spin") as target:
        detour(target.pid, steps.append)
    for step in sorted(set(steps) - {"detached"}):
        with calling(program, "spin") as target:

            def at(name: str, step: str = step, pid: int = target.pid) -> None:
                if name == step:
                    os.kill(pid, signal.SIGKILL)

            with pytest.raises(RbtraceError) as caught:
                detour(target.pid, at)
            assert isinstance(caught.value, NoSuchTarget), step
            assert target.process.wait(TIMEOUT) == -signal.SIGKILL


def test_a_function_that_crashes(program: str) -> None:
    """The thread is rescued. Its own signal handlers are not called."""
    with calling(program, "read") as target, Process(target.pid) as process:
        with MemoryFile(process) as memory:
            landing = landing_of(process)

            def work() -> None:
                deadline = time.monotonic() + 60
                tracee = Tracee(process)
                led = Detour(
                    process, tracee, memory, landing.restore, deadline, lambda s: None
                )
                led.stop()
                led.run(0x10)

            with pytest.raises(RbtraceError, match="signal 11"):
                in_a_thread(work)
        await_state(target.pid, "S")
        assert target.step("x").split()[:2] == ["1", "0"]


def test_a_function_that_takes_too_long(program: str) -> None:
    """The thread is released, and returns by itself when the function does."""
    with calling(program, "read") as target, Process(target.pid) as process:
        with MemoryFile(process) as memory:
            landing = landing_of(process)
            sleep = function_of(process, "sleep")

            steps: list[str] = []

            def work() -> None:
                led = Detour(
                    process,
                    Tracee(process),
                    memory,
                    landing.restore,
                    time.monotonic() + 0.3,
                    steps.append,
                )
                led.stop()
                led.run(sleep, 3)

            while "masked" not in steps:
                # On a busy machine, it may be too late before that.
                with pytest.raises(Late):
                    in_a_thread(work)
        assert mask(target.pid) != 0
        assert comes_true(
            lambda: not mask(target.pid) and task_state(target.pid) == "S"
        )
        assert target.step("x").split()[:2] == ["1", "0"]
        assert target.step() == "signals 0 0"


def test_one_that_cannot_be_stopped(program: str) -> None:
    """It is released in time: it was never stopped, and nothing was done."""
    target = Target(program, "vfork", "1500")
    try:
        assert target.step() == "calling"
        await_state(target.pid, "D")
        with Process(target.pid) as process, MemoryFile(process) as memory:
            landing = landing_of(process)

            def work() -> None:
                deadline = time.monotonic() + 0.2
                Detour(
                    process,
                    Tracee(process),
                    memory,
                    landing.restore,
                    deadline,
                    lambda step: None,
                ).stop()

            with pytest.raises(Late) as caught:
                in_a_thread(work)
            assert caught.value.hint
        result, error, took = map(int, read_line(target.process.stdout).split())
        assert (result, error) == (1, 0)
        assert 1500 <= took < 3000
        assert target.step() == "signals 0 0"
    finally:
        target.close()


def mask(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(ln.split()[1], 16) for ln in lines if ln.startswith("SigBlk"))


def function_of(process: Process, name: str) -> int:
    """Return the address of a function of its C library."""
    for file in group_files(mappings(process)):
        if file.binary.path.rsplit("/", 1)[-1].startswith(("libc.", "libc-")):
            with open_mapped(process, file) as opened:
                table = SymbolTable.open(opened.fd)
                symbol = table.find(name)
                bias = load_bias(table.elf, file.mappings)
                assert symbol
                assert bias is not None
                return symbol.address + bias
    raise AssertionError("no C library")


def test_one_that_is_traced_already(program: str) -> None:
    with calling(program, "read") as target, Process(target.pid) as process:
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            Tracee(process)
            held.set()
            let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        with pytest.raises(NotPermitted, match="traced by"):
            in_a_thread(lambda: Tracee(process) and None)
        let_go.set()
        thread.join()


def test_a_stack_without_room(program: str) -> None:
    """A guard page is just below the stack pointer, so the thread is left alone."""
    with calling(program, "spin", "tight") as target, Process(target.pid) as process:
        with MemoryFile(process) as memory:
            landing = landing_of(process)

            def work() -> None:
                deadline = time.monotonic() + 60
                led = Detour(
                    process,
                    Tracee(process),
                    memory,
                    landing.restore,
                    deadline,
                    lambda step: None,
                )
                led.stop()

            with pytest.raises(Busy, match="no free space"):
                in_a_thread(work)
        os.kill(target.pid, signal.SIGUSR1)
        assert read_line(target.process.stdout) == "wrong 0"
