"""A working folder with the examples, running programs, and a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pkgutil
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from forked import become
from terminal import screen

import rbtrace_py
from processes import ROOT, TIMEOUT, comes_true, read_line

COLUMNS, ROWS = 88, 50
_left_over = shutil.ignore_patterns("tmp")
"""The prompt of a running example."""
PROMPT = re.compile(r"\d+:\d+[>*] $")


def load_all() -> None:
    """Import modules that commands import lazily, once for all tests."""
    for module in pkgutil.walk_packages(rbtrace_py.__path__, "rbtrace_py."):
        importlib.import_module(module.name)


class Desk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = f"desk-{os.getpid()}-{time.monotonic_ns()}"
        self._programs: dict[str, subprocess.Popen[str]] = {}
        for path in ("examples", "ext/agent", "ruby/lib"):
            shutil.copytree(ROOT / path, folder / path, ignore=_left_over)

    def start(self, words: list[str]) -> list[str]:
        """Start an example, stop the one it replaces, and return its output."""
        script = next(word for word in words if word.endswith(".rb"))
        self._stop(self._programs.pop(script, None))
        program = self._programs[script] = subprocess.Popen(
            [*words, self._mark],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        said = [""]
        while said[-1] != "ready":
            said.append(read_line(program.stdout))
            assert said[-1], f"{words} ended before it was ready"
        # A reader types only after the threads that the pages show have started.
        if script.endswith("shop.rb"):
            tills = int(words[-1]) if "--threads" in words else 3
            assert comes_true(lambda: _named(program.pid, "till") == tills)
        return said[1:]

    def run(
        self, words: list[str], typed: list[str], until: str = ""
    ) -> tuple[list[str], int]:
        """Run ``rbtrace-py`` on a terminal. Return its lines and its exit code.

        Each line of ``typed`` is typed at a prompt, and a Ctrl-D follows. A Ctrl-C is
        typed once the output contains ``until``.
        """
        words = self._ours(words)
        pid, terminal = pty.fork()
        if pid == 0:
            become(words, self._sit_down)
        said, lines, end = "", [*typed, "\x04"], time.monotonic() + TIMEOUT
        typed_at = 0
        while data := _read(terminal, end):
            said += data.decode("utf-8", "replace")
            # The same prompt may arrive in parts. A Ctrl-C typed too early is lost.
            is_new = "\n" in said[typed_at:]
            if typed and lines and is_new and PROMPT.search(screen(said)[-1]):
                line, typed_at = lines.pop(0), len(said)
                os.write(terminal, line.encode() + b"\n" * (line != "\x04"))
            if until and re.search(until, said):
                os.write(terminal, b"\x03")
                until = ""
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        said = re.sub(rf"( |\.\*){self._mark}", "", said)
        lines = "\n".join(map(_without_moves, screen(said))).splitlines()
        return lines, os.waitstatus_to_exitcode(status)

    def size_of(self, name: str) -> int:
        return (self._folder / name).stat().st_size

    def _ours(self, words: list[str]) -> list[str]:
        """Restrict ``--ps`` to programs of this desk: other tests may run the same
        ones."""
        own = words[: words.index("--")] if "--" in words else words
        return [
            f"{word}.*{self._mark}" if i and own[i - 1 : i] == ["--ps"] else word
            for i, word in enumerate(words)
        ]

    def _sit_down(self) -> None:
        """Attach to the terminal and change to the folder."""
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.chdir(self._folder)
        os.environ.update(TERM="xterm", NO_COLOR="1", HOME=str(self._folder))

    @staticmethod
    def _stop(program: subprocess.Popen[str] | None) -> None:
        if not program:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(TIMEOUT)
        if program.stdout:
            program.stdout.close()

    def close(self) -> None:
        for program in self._programs.values():
            self._stop(program)


def _without_moves(line: str) -> str:
    """Start a new line at each cursor movement of ``top``."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "\n", line)


def _read(terminal: int, end: float) -> bytes:
    """Wait for data and return it. Return nothing once the other end is closed."""
    ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
    assert ready, "it does not end"
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def _named(pid: int, name: str) -> int:
    """Return the number of threads whose names start with a prefix."""
    comms = Path(f"/proc/{pid}/task").glob("*/comm")
    return sum(comm.read_text().startswith(name) for comm in comms)
