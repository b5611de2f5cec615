"""Targets of code injection, and signals from the injected code that it ran."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import rubies
from processes import TARGETS, Target, comes_true
from rbtrace_py.agent.inject import Injection, inject
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside.injection import ruby_addresses

PROGRAM = str(TARGETS / "inside/injected.rb")
LIMIT = 60.0


@dataclass
class Injected:
    """A target that runs injected.rb. ``pid`` is the PID that it reports."""

    target: Target
    pid: int

    def end(self) -> str:
        """Tell it to end, and return its last answer."""
        return self.target.step()


@contextlib.contextmanager
def injected(*words: str, ruby: str = rubies.HERE) -> Iterator[Injected]:
    """Start injected.rb in the Ruby of that name, and end it afterwards."""
    target = Target(*rubies.ruby(ruby), PROGRAM, *words)
    try:
        yield Injected(target, int(target.ready.split()[1]))
    finally:
        target.close()


class Bell:
    """A FIFO for the answer of the injected code, instead of the agent's socket."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bell"
        os.mkfifo(self.path)
        self.path.chmod(0o666)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.rings = 0

    @property
    def code(self) -> bytes:
        open_it = f'::File.open("{self.path}", ::File::WRONLY | ::File::NONBLOCK)'
        return f'::Thread.start {{ {open_it} {{ |f| f.write("!") }} }}'.encode()

    def has_rung(self) -> bool:
        """Return whether it has rung since the last call."""
        with contextlib.suppress(BlockingIOError):
            rings = len(os.read(self._fd, 100))
            self.rings += rings
            return rings > 0
        return False

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def bell(root: None) -> Iterator[Bell]:
    """A bell in /tmp, which the chroots share."""
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        made = Bell(Path(folder))
        yield made
        made.close()


def ring(pid: int, bell: Bell, limit: float = 30.0) -> Injection:
    """Let the process ring once."""
    with Process(pid) as process:
        ruby = ruby_addresses(process)
        return inject(process, ruby, bell.code, bell.has_rung, limit)


# While glibc creates a thread, it blocks every signal that can be blocked.
_ALL_BLOCKED = (1 << 64) - 1 & ~(1 << signal.SIGKILL - 1) & ~(1 << signal.SIGSTOP - 1)


def state(pid: int) -> dict[str, int]:
    """Return the state that must not change: signals blocked, ignored, and caught,
    and the tracer."""
    found = {}

    def is_settled() -> bool:
        found.update(_state(pid))
        return found["SigBlk"] != _ALL_BLOCKED

    comes_true(is_settled, LIMIT, pause=0.0001)
    return found


def settles(pid: int, before: dict[str, int]) -> bool:
    """Wait until the state is as before."""
    return comes_true(lambda: state(pid) == before, LIMIT)


def _state(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    found = {name: int(pairs[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")}
    # glibc catches signal 33 from the first thread on.
    found["SigCgt"] &= (1 << 31) - 1
    return {**found, "TracerPid": int(pairs["TracerPid"])}


def build_registers(folder: Path) -> Path:
    """Build registers.S as a library without a C library, for any of the Rubies."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    output = folder / "registers.so"
    flags = ["-shared", "-nostdlib", "-fPIC"]
    source = str(TARGETS / "inside/registers.S")
    command = ["gcc", *flags, *_vector_flags(), source, "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def _vector_flags() -> list[str]:
    words = Path("/proc/cpuinfo").read_text().split()
    if "avx512f" in words:
        return ["-mavx512f"]
    return ["-mavx"] if "avx" in words else []
