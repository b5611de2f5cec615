"""Commands that run for days keep their memory: each live one, an hour in a soak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from processes import MAIN, ROOT, TIMEOUT, Target, is_soak

SECONDS, WARM_SECONDS, MOST_MIB = (3600, 300, 8) if is_soak() else (10, 4, 16)
"""How long they run, how long until their memory is looked at, by how much it may
grow from there on. What a short run does in its first seconds is no growth."""

LIVE = {
    "latency --by": ("latency", "order", "--by", "sku", "-i", "10"),
    "count --by": ("count", "order", "--by", "sku", "-i", "10"),
    "values --by": ("values", "order", "price", "--by", "sku", "-i", "10"),
    "latency method": ("latency", "-m", "Steady.", "-i", "10"),
    "trace": ("trace", "order"),
    "trace raise": ("trace", "raise"),
    "calls": ("calls", "-m", "Steady."),
    "calls --record": ("calls", "-m", "Steady.", "-o", "FOLDER/calls.rbrec"),
    "stacks": ("stacks", "--mode", "wall", "-i", "10"),
    "stacks --calls": ("stacks", "--calls", "-m", "Steady.", "-i", "10"),
    "record": ("record", "-o", "FOLDER/stacks.rbrec"),
    "top": ("top", "--mode", "wall"),
}
SHORT = ("latency --by", "calls", "stacks", "top")
"""Those of a run that is not a soak."""


def own_memory(pid: int) -> int:
    """Memory of a process, in KiB; without its targets' rings, which fill up once."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


@contextmanager
def running(words: tuple[str, ...], pid: int, folder: Path) -> Iterator[int]:
    """A command while it goes on; what it prints is thrown away."""
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


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 1800)
def test_memory_is_flat(
    root: None, start: Callable[..., Target], tmp_path: Path
) -> None:
    """All at once, each with a target of its own: only one may hook methods."""
    with ExitStack() as stack:
        pids = {}
        for name in LIVE if is_soak() else SHORT:
            target = start("steady.rb")
            command = running(LIVE[name], target.pid, tmp_path)
            pids[name] = stack.enter_context(command)
        time.sleep(WARM_SECONDS)
        before = {name: own_memory(pid) for name, pid in pids.items()}
        time.sleep(SECONDS - WARM_SECONDS)
        grown = {name: own_memory(pid) - before[name] for name, pid in pids.items()}
    print(grown)
    assert {name: size for name, size in grown.items() if size > MOST_MIB << 10} == {}
