"""Programs that are held at their beginning, and their ends and rights."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from linux_targets import compile_c

from processes import comes_true, times
from rbtrace_py.linux.ptrace import held_start, tracee
from rbtrace_py.linux.ptrace.held_start import HeldStart

LONG = 60.0
NOBODY = 65534
PR_SET_DUMPABLE = 4

Popen = subprocess.Popen[str]


def started(held: HeldStart, *words: object, stdin: int | None = None) -> Popen:
    """Start a program that is held; its output is read from ``stdout``."""
    command = [str(word) for word in words]

    def popen(before: Callable[[], None]) -> Popen:
        return subprocess.Popen(
            command,
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            preexec_fn=before,  # noqa: PLW1509
        )

    program = held.start(popen)
    held.to_program(LONG)
    return program


@pytest.fixture
def held() -> Iterator[HeldStart]:
    held = HeldStart()
    yield held
    held.release()


def maps(program: Popen) -> str:
    return Path(f"/proc/{program.pid}/maps").read_text()


def name(program: Popen) -> str:
    return Path(f"/proc/{program.pid}/comm").read_text().strip()


def test_libraries_are_mapped_and_nothing_has_run(held: HeldStart) -> None:
    program = started(held, "ruby", "-e", "puts 42")
    assert held.is_held
    assert name(program) == "ruby"
    assert "libruby" in maps(program) or "/bin/ruby" in maps(program)
    assert "enc/encdb" not in maps(program)  # the first file that Ruby loads
    held.release()
    assert program.communicate() == ("42\n", None)
    assert program.returncode == 0


def test_a_shell_that_executes_another_program(held: HeldStart) -> None:
    program = started(held, "sh", "-c", "exec /usr/bin/env echo found")
    assert name(program) == "sh"
    held.to_program(LONG)
    assert name(program) == "env"
    held.to_program(LONG)
    assert name(program) == "echo"
    held.to_program(LONG)  # until it has ended
    assert not held.is_held
    assert held.is_over
    assert program.communicate()[0] == "found\n"


def test_a_ruby_stops_at_some_of_its_calls(
    held: HeldStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_start, "HELD_SECONDS", LONG)
    program = started(held, "ruby", "-e", "puts 42")
    assert held.is_at_beginning
    stops = 0
    while held.is_held:
        held.to_call(LONG)
        stops += 1
        assert not held.is_at_beginning
    assert 10 < stops < 100  # of hundreds or thousands of calls
    assert program.communicate()[0] == "42\n"


def test_a_wait_for_a_program_ends_after_the_given_time(held: HeldStart) -> None:
    shell = "read line; exec /bin/echo $line"
    program = started(held, "sh", "-c", shell, stdin=subprocess.PIPE)
    held.to_program(0.001)
    assert (held.is_held, held.is_over) == (False, False)
    assert program.stdin is not None
    program.stdin.write("found\n")
    program.stdin.flush()
    held.to_program(LONG)
    assert (held.is_held, name(program)) == (True, "echo")
    held.release()
    assert program.communicate()[0] == "found\n"


def test_a_program_that_does_not_exist() -> None:
    held = HeldStart()
    with pytest.raises(FileNotFoundError):
        started(held, "/no/such/program")
    assert held.is_over
    assert not any(t.name == "rbtrace-held" for t in threading.enumerate())
    with pytest.raises(ChildProcessError):
        os.waitpid(held._pid, os.WNOHANG)


def test_a_held_program_is_released_after_a_time(
    held: HeldStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_start, "HELD_SECONDS", 0.5)
    program = started(held, "echo", "done")
    assert program.stdout is not None
    assert program.stdout.readline() == "done\n"
    assert not held.is_held
    program.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_held_program_is_killed(held: HeldStart, number: signal.Signals) -> None:
    program = started(held, "sleep", "100")
    program.send_signal(number)
    held.release()
    assert program.wait(LONG) == -number


def test_a_signal_reaches_it(held: HeldStart) -> None:
    program = started(held, "sh", "-c", "trap 'echo got; exit 3' USR1; kill -USR1 $$")
    held.to_program(LONG)
    assert program.communicate()[0] == "got\n"
    assert program.returncode == 3


def test_it_is_stopped_by_a_signal(held: HeldStart) -> None:
    program = started(held, "sh", "-c", "kill -STOP $$; echo went on")
    held.to_program(LONG)
    assert held.is_over
    assert comes_true(lambda: "T" in Path(f"/proc/{program.pid}/stat").read_text())
    program.send_signal(signal.SIGCONT)
    assert program.communicate()[0] == "went on\n"


# ------------------------------------------------------------------ killed tracers


def in_a_fork(work: Callable[[], object]) -> int:
    """Fork, let the child do ``work``, and return its status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def started_by_one_that_dies(number: int) -> int:
    """Return the output of a program whose tracer dies at a call of ptrace."""
    reading, writing = os.pipe()
    real, made = tracee.ptrace, itertools.count()

    def dying(*arguments: int) -> int:
        if next(made) == number:
            die()
        return real(*arguments)

    def work() -> None:
        tracee.ptrace = dying  # type: ignore[assignment]
        os.dup2(writing, 1)
        held = HeldStart()
        command = ["sh", "-c", "exec echo alive"]
        held.start(lambda before: subprocess.Popen(command, preexec_fn=before))  # noqa: PLW1509
        held.to_program(LONG)
        held.to_program(LONG)
        held.to_call(LONG)
        die()

    status = in_a_fork(work)
    assert os.WTERMSIG(status) == signal.SIGKILL
    os.close(writing)
    with open(reading) as said:
        return said.read() == "alive\n"


def test_it_lives_on_when_we_are_killed() -> None:
    """The tracer dies at a call of ptrace, or while it holds the program."""
    for number in range(0, 400, 400 // times(400)):
        assert started_by_one_that_dies(number), number


# --------------------------------------------------------------------- more rights


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


def said_as_nobody(words: list[str]) -> str:
    """Return the output of a program that an ordinary user starts and holds."""
    reading, writing = os.pipe()

    def work() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
        os.chdir("/")
        held = HeldStart()
        program: Any = held.start(
            lambda before: subprocess.Popen(words, stdout=writing, preexec_fn=before)  # noqa: PLW1509
        )
        held.to_program(LONG)
        assert held.is_held or "id" in words[0]
        while not held.is_over:
            held.to_program(LONG)
        os._exit(program.wait())

    assert in_a_fork(work) == 0
    os.close(writing)
    with open(reading) as said:
        return said.read()


@pytest.fixture
def identity(public: Path) -> Path:
    """A program with the set-user-ID bit that prints its user."""
    copy = public / "id"
    shutil.copy("/usr/bin/id", copy)
    copy.chmod(0o4755)
    return copy


def test_a_program_keeps_the_rights_of_its_file(identity: Path) -> None:
    assert said_as_nobody([str(identity), "-u"]) == "0\n"


@pytest.mark.parametrize("how", ["exec {}", "exec ./{}"])
def test_a_program_that_executes_one_with_rights(identity: Path, how: str) -> None:
    shell = f"cd {identity.parent}; {how.format('id' if './' in how else identity)} -u"
    assert said_as_nobody(["sh", "-c", shell]) == "0\n"


def test_a_script_whose_interpreter_has_rights(identity: Path) -> None:
    script = identity.parent / "script"
    script.write_text(f"#!{identity} -u\n")
    script.chmod(0o755)
    # It gets the script's path as a user's name, which it does not know.
    shell = f"{script} 2>&1 | grep -c 'no such user'"
    assert said_as_nobody(["sh", "-c", f'exec sh -c "{shell}"']) == "1\n"


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_a_path_that_is_no_program(held: HeldStart, tmp_path: Path, kind: str) -> None:
    """A shell finds the program in the next folder of PATH."""
    odd = tmp_path / "echo"
    if kind == "directory":
        odd.mkdir()
    elif kind == "fifo":
        os.mkfifo(odd, 0o755)
    else:
        os.mknod(odd, 0o755 | stat.S_IFCHR, os.makedev(1, 3))
    program = started(held, "sh", "-c", f"PATH={tmp_path}:$PATH; exec env echo found")
    held.to_program(LONG)
    assert name(program) == "env"
    held.to_program(LONG)
    assert name(program) == "echo"
    held.release()
    assert program.communicate()[0] == "found\n"


def test_one_that_lets_itself_be_traced(held: HeldStart, tmp_path: Path) -> None:
    source = tmp_path / "traced.c"
    source.write_text(
        "#include <stdio.h>\n#include <sys/ptrace.h>\n"
        'int main(void) { printf("%ld\\n", ptrace(PTRACE_TRACEME, 0, 0, 0)); }\n'
    )
    program = started(held, compile_c(source, tmp_path / "traced"))
    held.to_program(LONG)
    assert held.is_over
    assert program.communicate()[0] == "0\n"


def test_no_thread_can_be_started(
    held: HeldStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(held._thread, "start", no_more)
    before = os.listdir("/proc/self/fd")
    program = started(held, "echo", "ran")
    assert held.is_over
    assert program.communicate()[0] == "ran\n"
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_one_that_was_not_started() -> None:
    HeldStart().release()


def test_one_that_cannot_be_traced_runs(
    held: HeldStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracee, "ptrace", lambda *arguments: 1)  # EPERM
    monkeypatch.setattr(held_start, "HELD_SECONDS", 10 * LONG)
    program = started(held, "echo", "ran")
    assert held.is_over  # before its time
    assert program.communicate()[0] == "ran\n"
