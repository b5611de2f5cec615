"""``rbtrace-py`` on a terminal of a given size, and its output there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from rbtrace_py.cli.main import main; main()"
TIMEOUT = 60


class Terminal:
    """A process whose streams, or some of them, are a new terminal.

    The terminal also controls its session: closing it sends SIGHUP, and
    ``type("\\x03")`` sends SIGINT.
    """

    def __init__(
        self,
        *words: object,
        columns: int = 80,
        rows: int = 24,
        env: dict[str, str] | None = None,
        **streams: int,
    ) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        _keep_output(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, words)],
            **{"stdin": slave, "stdout": slave, "stderr": slave, **streams},
            preexec_fn=_own_terminal,  # noqa: PLW1509 - no threads here
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "tracer"),
                "TERM": "xterm",
                "NO_COLOR": "",
                "PYTHONUTF8": "1",
                **(env or {}),
            },
        )
        os.close(slave)
        self.said = ""

    def read_until(self, pattern: str) -> str:
        """Read until the output matches. Return all output so far."""
        end = time.monotonic() + TIMEOUT
        while not re.search(pattern, self.said):
            assert time.monotonic() < end, self.said
            if not self._read(1.0) and self.process.poll() is not None:
                assert re.search(pattern, self.said), self.said
        return self.said

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def finish(self) -> tuple[str, int]:
        """Wait for the end. Return all output and the exit code."""
        while self._read(TIMEOUT):
            pass
        return self.said, self.process.wait(TIMEOUT)

    def hang_up(self) -> int:
        """Close the terminal. Return the exit code."""
        os.close(self.master)
        self.master = -1
        return self.process.wait(TIMEOUT)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.said += data.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        if self.master >= 0:
            with contextlib.suppress(OSError):
                os.close(self.master)


def _keep_output(slave: int) -> None:
    """Keep Ctrl-C from dropping pending output, such as the program's response."""
    modes = termios.tcgetattr(slave)
    modes[3] |= termios.NOFLSH
    termios.tcsetattr(slave, termios.TCSANOW, modes)


def _own_terminal() -> None:
    os.setsid()
    # Take the descriptor that is a terminal, even if some streams are redirected.
    for number in (0, 1, 2):
        if os.isatty(number):
            fcntl.ioctl(number, termios.TIOCSCTTY, 0)
            return


def screen(said: str) -> list[str]:
    """Return the final lines of output that only rewrites whole lines.

    The echoed ^C is left out, because the terminal may write it before or after the
    program's own message.
    """
    plain = re.sub(r"\x1b\[\d*m|\^C", "", said)
    lines = [line.rpartition("\r\x1b[2K")[2] for line in plain.split("\r\n")]
    return [line.lstrip("\r") for line in lines]


def status_lines(said: str) -> list[str]:
    """Return each text that the status line has shown."""
    return re.findall(r"\x1b\[2K([^\r\n\x1b^]+)(?=\^C|\r\x1b)", said)
