"""A C program with probes, and helpers that run other tracing tools on it."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import processes

LIBRARY = Path(__file__).resolve().parents[2] / "ext" / "libstapsdt"
DEADLINE = 60


class Target(processes.Target):
    """ext/libstapsdt/tests/target.c: it answers each command line with one line."""

    def __init__(self, program: Path, **environment: str) -> None:
        super().__init__(program, env=environment)

    def ask(self, command: str) -> str:
        return self.step(command)

    def tell(self, command: str) -> None:
        assert self.step(command) == "ok"

    def fork(self) -> int:
        """Fork. Later commands go to the child, whose pid is returned."""
        word, pid = self.step("fork").split()
        assert word == "child"
        return int(pid)

    def wait_watched(self, name: str, expected: bool = True) -> None:
        """Wait until the program notices the tool: tools do not report when they are
        attached."""
        deadline = time.monotonic() + DEADLINE
        while self.step(f"watched {name}") != str(int(expected)):
            assert time.monotonic() < deadline, f"{name} is not watched"

    def images(self, pid: int | None = None) -> list[str]:
        folder = Path(f"/proc/{pid or self.pid}/fd")
        numbers = sorted(int(entry.name) for entry in folder.iterdir())
        paths = [f"{folder}/{number}" for number in numbers]
        return [p for p in paths if os.readlink(p).startswith("/memfd:libstapsdt")]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE)


def need(tool: str) -> str:
    """Return the path of a tool, or skip the test."""
    path = shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


def run(*command: str, **environment: str) -> str:
    """Return a tool's output. The tool must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Bpftrace:
    """bpftrace on one probe of a process, with its lines as they arrive."""

    def __init__(self, pid: int, script: str) -> None:
        self.process = subprocess.Popen(
            [need("bpftrace"), "-B", "line", "-p", str(pid), "-e", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.seen: list[str] = []
        self.rest = b""

    def read(self, timeout: float) -> None:
        """Read its output. Lines that begin with `>` are the script's."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            return
        chunk = os.read(self.process.stdout.fileno(), 65536)
        assert chunk, "bpftrace has ended"
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        self.seen += [line[1:].decode() for line in whole if line[:1] == b">"]

    def wait_attached(self, fire: Callable[[], None]) -> None:
        """Fire until a shot is printed. A site is patched before its program runs,
        and no event reports when it does."""
        deadline = time.monotonic() + DEADLINE
        while not self.seen:
            assert time.monotonic() < deadline, "no shot was seen"
            fire()
            self.read(0.05)

    def last(self, expected: list[str]) -> list[str]:
        """Return the newest lines, once the last expected line has arrived."""
        deadline = time.monotonic() + DEADLINE
        while self.seen[-len(expected) :] != expected:
            if time.monotonic() > deadline:
                break
            self.read(0.2)
        return self.seen[-len(expected) :]

    def close(self) -> None:
        """Kill the process. Further calls do nothing."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
