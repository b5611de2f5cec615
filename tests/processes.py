"""Programs that tests start: targets that do a step on request."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ROOT / "tests" / "targets"
LIB = ROOT / "ruby" / "lib"
TIMEOUT = int(os.environ.get("RBTRACE_TEST_TIMEOUT") or 60)
MAIN = "from rbtrace_py.cli.main import main; main()"
NOT_SAMPLED = "(running, not sampled)"
"""Only frame of a thread that ran while it was sampled, but never at a tick."""


def is_soak() -> bool:
    return os.environ.get("RBTRACE_SOAK", "") not in ("", "0")


def margin(samples: int, least: float) -> float:
    """Return the possible error of a share in percentage points: 4 standard
    deviations."""
    return max(least, 4 * 50 / samples**0.5)


def times(full: int) -> int:
    """Return the number of repetitions: all in a soak, a twentieth in a test."""
    return full if is_soak() else max(1, full // 20)


def read_line(stream: Any, timeout: float = TIMEOUT) -> str:
    """Return a process's next line, or an empty string if it has ended. Fail if it is
    late.

    It is read byte by byte, so that later output stays unread.
    """
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], timeout)
        assert ready, "the process said nothing in time"
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace").strip()


def comes_true(
    is_so: Callable[[], bool], timeout: float = TIMEOUT, pause: float = 0.001
) -> bool:
    """Poll for a condition that sends no event, as in /proc. Return whether it came
    true."""
    end = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def task_state(pid: int, tid: int | None = None) -> str:
    """Return the letter of a thread's state in proc(5). The default is the main
    thread."""
    stat = Path(f"/proc/{pid}/task/{tid or pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


def task_states(pid: int) -> set[str]:
    """Return the states of all its threads."""
    found = set()
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.add(task_state(pid, int(tid)))
    return found


def await_state(pid: int, letter: str, tid: int | None = None) -> None:
    """Wait until a thread is in this state. The default is the main thread."""
    assert comes_true(lambda: task_state(pid, tid) == letter), task_state(pid, tid)


def hanging(pid: int) -> str:
    """Return the positions of a process's threads, in the kernel and in Ruby."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            calls = (task / "stack").read_text().split("\n")[:4]
            said.append(f"{task.name} {task_state(pid, int(task.name))} {calls}")
    words = [sys.executable, "-c", MAIN, "dump", str(pid)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    return "\n".join([*said, done.stdout, done.stderr])


def run_time(pid: int) -> int:
    """Return how long a process's threads ran, in ns: proc(5), schedstat.

    Ended threads are not included.
    """
    ran = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ran += int(task.read_text().split()[0])
    return ran


@contextlib.contextmanager
def busy_on(cpu: int) -> Iterator[None]:
    """Run a process that keeps this CPU busy."""
    words = ["sh", "-c", "while :; do :; done"]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        os.sched_setaffinity(process.pid, {cpu})
        yield
    finally:
        process.kill()
        process.wait()


def bring_to(cpu: int, pid: int) -> None:
    """Restrict all threads of a process to one CPU."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(tid), {cpu})


class Target:
    """A process that does a step on request.

    ``env`` is added to our environment. ``options`` are passed to ``subprocess.Popen``.
    """

    took = 0.0
    """Seconds from the last step to its answer."""

    def __init__(
        self, *command: object, env: dict[str, str] | None = None, **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **(env or {})},
            **{"start_new_session": True, **options},
        )
        try:
            self.ready = self.await_ready()
        except AssertionError:
            self.close()
            raise

    def await_ready(self) -> str:
        """Return the line that reports that it is ready."""
        line = self._answer()
        assert line.startswith("ready"), line
        return line

    def _answer(self) -> str:
        """Return the next line. If it is late, the error shows where the process
        hangs."""
        try:
            return read_line(self.process.stdout)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{hanging(self.process.pid)}") from None

    @property
    def pid(self) -> int:
        return self.process.pid

    def step(self, word: str = "") -> str:
        """Request a step, wait until it is done, and return the answer."""
        began = time.monotonic()
        self._send(word)
        answer = self._answer()
        self.took = time.monotonic() - began
        return answer

    def ticks(self, seconds: float, rate: int = 499) -> range:
        """Return the possible number of samples for a CPU time in the last step.

        A thread's CPU clock leaves out interrupts, in which BPF programs of other
        tracers may run, and the time that a hypervisor took. Timers do not.
        """
        most = max(seconds, self.took)
        return range(int(0.9 * seconds * rate), int(1.1 * most * rate) + 1)

    def tell(self, word: str = "") -> None:
        """Send a word without waiting for an answer."""
        self._send(word)

    def _send(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def wait_until_it_reads(self) -> None:
        """Wait until the main thread reads its input: it is "ready" shortly before.

        Its system call in proc(5), ``syscall``, is then read of descriptor 0.
        """
        call = Path(f"/proc/{self.pid}/syscall")
        assert comes_true(lambda: call.read_text().startswith("0 0x0 "))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
