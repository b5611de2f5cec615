"""Commands that keep running while a test measures their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import MAIN, ROOT, TIMEOUT


def own_memory(pid: int) -> int:
    """Return a process's memory in KiB, without its targets' rings: these fill up
    once."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


@contextmanager
def running(words: tuple[str, ...], pid: int, folder: Path) -> Iterator[int]:
    """Run a command, discard its output, and yield its PID."""
    read, write = os.pipe()
    own = [word.replace("FOLDER", str(folder)) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *own, "--subprocesses", "-p", str(pid)],
        stdout=subprocess.DEVNULL,
        pass_fds=(write,),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tracer"),
            "RBTRACE_READY_FD": str(write),
        },
    )
    os.close(write)
    try:
        assert os.read(read, 16) == b"attached\n", words
        yield process.pid
        assert process.poll() is None, f"{words} has ended"
        process.send_signal(signal.SIGINT)
        assert process.wait(5 * TIMEOUT) in (0, 5), words
    finally:
        os.close(read)
        process.kill()
        process.wait()
