"""Processes paused for a moment: all threads, without leftovers, whichever process
dies."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from linux_targets import compile_c, running

from processes import comes_true, task_states, times
from public_copy import PYTHON, PublicCopy
from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.pause import paused

SOURCE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* Shared with the test: how often each thread went round, signals that came. */
static volatile unsigned long *count;
static void on_signal(int number) { __atomic_add_fetch(&count[8], 1, 5); }
static void *spin(void *index) { for (;;) count[(long)index]++; }
static void *nap(void *index) { for (;;) { usleep(500); count[(long)index]++; } }
static void *leaf(void *unused) { return unused; }
static void *spawn(void *index) {
  for (;;) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, leaf, NULL)) pthread_join(thread, NULL);
    count[(long)index]++;
  }
}
int main(int argc, char **argv) {
  pthread_t thread;
  FILE *file = fopen(argv[1], "r+");
  count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  signal(SIGUSR1, on_signal);
  for (long i = 2; i < argc; i++) {
    void *(*work)(void *) = *argv[i] == 's' ? spin : *argv[i] == 'n' ? nap : spawn;
    pthread_create(&thread, NULL, work, (void *)(i - 2));
  }
  puts("ready");
  fflush(stdout);
  int c;
  while ((c = getchar()) != EOF) if (c == 'q') return 42;
  return 0;
}
"""


class Counts:
    """The program's own counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(4096))

    def read(self) -> tuple[int, ...]:
        return struct.unpack_from("9Q", self.path.read_bytes())

    def wait_for_more(self, *threads: int) -> None:
        """Return once each of these has gone on."""
        before = self.read()
        assert comes_true(lambda: all(self.read()[i] != before[i] for i in threads)), (
            f"{threads} do not go on"
        )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ptrace")
    (folder / "program.c").write_text(SOURCE)
    return compile_c(folder / "program.c", folder / "program", "-pthread")


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    return Counts(tmp_path / "counts")


def is_traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def test_all_threads_stop_and_go_on(program: Path, counts: Counts) -> None:
    with running(program, counts.path, *"snnn") as target:
        counts.wait_for_more(0, 1, 2, 3)
        with Process(target.pid) as process:
            for _ in range(20):
                began = time.monotonic_ns()
                with paused(process, 10) as pause:
                    assert task_states(target.pid) == {"t"}
                    before = counts.read()
                    time.sleep(0.002)
                    assert counts.read() == before
                assert 2_000_000 <= pause.stopped_ns <= time.monotonic_ns() - began
                assert pause.threads == 5
                assert not pause.is_expired
                assert not is_traced(target.pid)
            counts.wait_for_more(0, 1, 2, 3)


def test_a_spared_thread_keeps_running(program: Path, counts: Counts) -> None:
    with running(program, counts.path, *"sn") as target, Process(target.pid) as process:
        counts.wait_for_more(0, 1)
        spared = max(process.threads())
        with paused(process, 10, {spared}) as pause:
            assert pause.threads == len(process.threads()) - 1
            before = counts.read()
            counts.wait_for_more(1)
            assert counts.read()[0] == before[0]
        counts.wait_for_more(0, 1)


def test_threads_that_are_born_meanwhile(program: Path, counts: Counts) -> None:
    with running(program, counts.path, *"pps") as target:
        counts.wait_for_more(0, 1, 2)
        with Process(target.pid) as process:
            for _ in range(30):
                with paused(process, 10):
                    assert task_states(target.pid) <= {"t", "Z", "X"}
                    before = counts.read()
                    time.sleep(0.001)
                    assert counts.read() == before
        counts.wait_for_more(0, 1, 2)


def await_signals(counts: Counts, number: int) -> None:
    assert comes_true(lambda: counts.read()[8] >= number), "a signal was lost"


def test_signals_are_passed_on(program: Path, counts: Counts) -> None:
    """They come one at a time, because equal pending signals are merged."""
    with running(program, counts.path, "n") as target:
        counts.wait_for_more(0)
        with Process(target.pid) as process:
            for number in range(1, 101):
                if number % 2:
                    with paused(process, 10):
                        target.send_signal(signal.SIGUSR1)
                else:
                    target.send_signal(signal.SIGUSR1)
                    with paused(process, 10):
                        pass
                await_signals(counts, number)
        assert counts.read()[8] == 100


def test_one_that_is_stopped_stays_so(program: Path, counts: Counts) -> None:
    with running(program, counts.path, *"sn") as target:
        counts.wait_for_more(0, 1)
        target.send_signal(signal.SIGSTOP)
        os.waitpid(target.pid, os.WUNTRACED)
        with Process(target.pid) as process:
            for _ in range(5):
                with paused(process, 10):
                    assert task_states(target.pid) == {"t"}
                assert comes_true(lambda: task_states(target.pid) == {"T"})
        target.send_signal(signal.SIGCONT)
        counts.wait_for_more(0, 1)


def test_one_that_is_stopped_meanwhile(program: Path, counts: Counts) -> None:
    with running(program, counts.path, *"sn") as target:
        counts.wait_for_more(0, 1)
        with Process(target.pid) as process:
            with paused(process, 10):
                target.send_signal(signal.SIGSTOP)
            os.waitpid(target.pid, os.WUNTRACED)
            assert task_states(target.pid) == {"T"}
            target.send_signal(signal.SIGCONT)
        counts.wait_for_more(0, 1)


def test_a_paused_process_is_released_at_the_limit(
    program: Path, counts: Counts
) -> None:
    with running(program, counts.path, "s") as target, Process(target.pid) as process:
        with paused(process, 2) as pause:
            counts.wait_for_more(0)
        assert pause.is_expired
        assert 2_000_000_000 <= pause.stopped_ns < 5_000_000_000
        assert not is_traced(target.pid)


def test_an_error_in_the_block(program: Path, counts: Counts) -> None:
    with running(program, counts.path, "s") as target, Process(target.pid) as process:
        with pytest.raises(KeyError), paused(process, 10):
            raise KeyError("ours")
        assert not is_traced(target.pid)
        counts.wait_for_more(0)


def test_killed_while_it_is_paused(program: Path, counts: Counts) -> None:
    """Its parent, which we are, still learns how it ended."""
    with running(program, counts.path, *"sn") as target:
        with Process(target.pid) as process, paused(process, 10):
            target.kill()
        assert target.wait(60) == -signal.SIGKILL


def test_it_ends_by_itself(program: Path, counts: Counts) -> None:
    """Its exit code is unchanged, however often it is paused while it exits."""
    for _ in range(10):
        with running(program, counts.path, *"sp") as target:
            assert target.stdin
            with Process(target.pid) as process:
                target.stdin.write("q")
                target.stdin.flush()
                while process.alive():
                    try:
                        with paused(process, 10):
                            pass
                    except NoSuchTarget:
                        break
            assert target.wait(60) == 42


def test_one_that_has_ended(program: Path, counts: Counts) -> None:
    with running(program, counts.path, "s") as target:
        process = Process(target.pid)
        target.kill()
        target.wait()
        with pytest.raises(NoSuchTarget), paused(process, 10):
            pass
        process.close()


class Pauser:
    """A fork of this process that pauses ``pid``, and then sleeps forever.

    Starting a new interpreter each time would take most of a test's time. With
    ``calls``, it stops before its ptrace call of this number, from 0 on, instead.
    """

    def __init__(self, pid: int, calls: int | None = None) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _pause(pid, writing, calls)
        os.close(writing)
        with open(reading, "rb") as said:
            assert said.read(1) == b"p"

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0


def _pause(pid: int, said: int, calls: int | None) -> NoReturn:
    from rbtrace_py.linux.ptrace import pause as ptrace

    real, made = ptrace.ptrace, itertools.count()

    def stay() -> None:
        os.write(said, b"p")
        threading.Event().wait()

    def counted(request: int, tid: int, address: int, data: int) -> int:
        if next(made) == calls:
            stay()
        return real(request, tid, address, data)

    ptrace.ptrace = counted  # type: ignore[assignment]
    try:
        with Process(pid) as process:
            while True:
                with paused(process, 60):
                    if calls is None:
                        stay()
    finally:
        os._exit(1)


@pytest.fixture
def pauser() -> Iterator[Callable[..., Pauser]]:
    started: list[Pauser] = []

    def start(pid: int, calls: int | None = None) -> Pauser:
        started.append(Pauser(pid, calls))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_one_that_is_traced_already(
    program: Path, counts: Counts, pauser: Callable[..., Pauser]
) -> None:
    with running(program, counts.path, "s") as target, Process(target.pid) as process:
        other = pauser(target.pid)
        with pytest.raises(NotPermitted) as caught, paused(process, 10):
            pass
        assert f"is traced by process {other.pid} (" in str(caught.value)
        other.kill()
        counts.wait_for_more(0)
        with paused(process, 10):
            assert task_states(target.pid) == {"t"}


def test_it_lives_on_when_we_are_killed(
    program: Path, counts: Counts, pauser: Callable[..., Pauser]
) -> None:
    """While it is paused, or anywhere on the way in or out."""
    with running(program, counts.path, *"np") as target:
        # Three or four threads, each seized, interrupted, inspected, and released.
        for number in range(times(400)):
            killed = pauser(target.pid, number)
            killed.kill()
            assert not is_traced(target.pid)
            counts.wait_for_more(0, 1)
            assert "t" not in task_states(target.pid)


def test_a_thread_that_does_not_stop(
    program: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for a disk does not stop. It and the others are released."""
    from rbtrace_py.linux.ptrace import pause as ptrace

    with running(program, counts.path, *"sn") as target, Process(target.pid) as process:
        real = ptrace.ptrace

        def but_one(request: int, tid: int, address: int, data: int) -> int:
            if request == ptrace._PTRACE_INTERRUPT and tid == target.pid:
                return 0
            return real(request, tid, address, data)

        monkeypatch.setattr(ptrace, "ptrace", but_one)
        with (
            pytest.raises(RbtraceError, match="did not stop within"),
            paused(process, 0.05),
        ):
            pass
        assert comes_true(lambda: not is_traced(target.pid))
        counts.wait_for_more(0, 1)


def test_no_thread_of_ours_is_left(program: Path, counts: Counts) -> None:
    before = threading.active_count()
    with running(program, counts.path, "s") as target, Process(target.pid) as process:
        for _ in range(5):
            with paused(process, 10):
                pass
    assert threading.active_count() == before


# ------------------------------------------------------------------ permission


def as_user(copy: PublicCopy, code: str, *arguments: object) -> str:
    """Run Python as the user ``nobody``, and return its output."""

    def drop() -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        # exec makes it undumpable if the interpreter is only readable to root.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

    command = [PYTHON, "-c", code, str(copy.root / "tracer"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=drop)
    assert done.returncode == 0, done.stderr
    return done.stdout


EXPLAIN = """
import sys
sys.path.insert(0, sys.argv[1])
from rbtrace_py.linux.permission import explain_denied
error = explain_denied(int(sys.argv[2]), "the memory")
print(error, "|", error.hint)
"""


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another")


def test_a_denial_for_another_users_process(
    root: None, program: Path, counts: Counts, public_copy: PublicCopy
) -> None:
    with running(program, counts.path, "n") as target:
        text = as_user(public_copy, EXPLAIN, target.pid)
    assert "it belongs to user root | Run as root" in text


def test_not_dumpable(root: None, public_copy: PublicCopy) -> None:
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0);"
        "print('ready', flush=True); sys.stdin.read()"
    )

    def drop() -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)

    with running(PYTHON, "-c", code, preexec_fn=drop) as target:
        text = as_user(public_copy, EXPLAIN, target.pid)
    assert "not dumpable" in text


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (0, "security module"),
        (1, "only for child processes"),
        (2, "without CAP_SYS_PTRACE"),
    ],
)
def test_yama(scope: int, text: str) -> None:
    """The file may be missing on this kernel, so its content is replaced."""
    from rbtrace_py.linux import permission

    own = permission.credentials(os.getpid())
    reason, hint = permission._why_without(own, own, scope)
    assert text in reason
    assert "CAP_SYS_PTRACE" in hint


def test_yama_forbids_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from rbtrace_py.linux import permission

    monkeypatch.setattr(permission, "read_int", lambda path: 3)
    error = permission.explain_denied(os.getpid(), "the memory")
    assert "ptrace_scope = 3" in str(error)
    assert not error.root_helps


def test_root_without_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    from rbtrace_py.linux import permission

    monkeypatch.setattr(permission, "effective_capabilities", frozenset)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(permission, "read_int", lambda path: 0)
    error = permission.explain_denied(os.getpid(), "the memory")
    assert "lacks CAP_SYS_PTRACE" in str(error)
    assert "--cap-add SYS_PTRACE" in error.hint


def test_a_denial_after_the_process_ended() -> None:
    from rbtrace_py.linux.permission import explain_denied

    child = subprocess.Popen(["true"])
    child.wait()
    assert str(child.pid) in str(explain_denied(child.pid, "the memory"))
