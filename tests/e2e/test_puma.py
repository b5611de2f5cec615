"""A server that forks workers and replaces them one by one, while it is traced."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import LIB, TARGETS, Tracer, run
from processes import TIMEOUT, read_line

CALLS = 2
"""Methods of Web that a request calls."""


class Puma:
    """A cluster of two workers, with the agent in each."""

    def __init__(self, place: Path) -> None:
        self._socket = str(place / "web.sock")
        self.process = subprocess.Popen(
            ["puma", "-C", str(TARGETS / "puma_app.rb")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PLACE": str(place),
                "RUBYLIB": str(LIB),
                "RUBYOPT": "-rtracepoint/agent",
            },
        )
        self.workers = self.booted()

    @property
    def pid(self) -> int:
        return self.process.pid

    def booted(self) -> set[int]:
        """The pids of the two workers that say next that they are there."""
        pids: set[int] = set()
        while len(pids) < 2:
            line = read_line(self.process.stdout)
            assert line, "puma has ended"
            found = re.search(r"Worker \d \(PID: (\d+)\) booted", line)
            pids |= {int(found[1])} if found else set()
        return pids

    def ask(self) -> int:
        """The pid of the worker that served a request."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(self._socket)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as file:
                return int(file.read().rpartition(b"\r\n")[2])

    def replace(self) -> None:
        """A phased restart: one worker after the other."""
        self.process.send_signal(signal.SIGUSR1)
        self.workers = self.booted()

    def close(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture
def puma(tmp_path: Path) -> Iterator[Puma]:
    if shutil.which("puma") is None:
        pytest.skip("puma is not installed")
    server = Puma(tmp_path)
    yield server
    server.close()


def test_workers_are_traced_through_a_phased_restart(
    puma: Puma, trace: Callable[..., Tracer]
) -> None:
    words = ["-m", "Web#", "--by", "pid", "--subprocesses", "-i", "0.2", "--json"]
    tracer = trace("latency", puma.pid, *words)
    before = Counter(puma.ask() for _ in range(40))
    first = puma.workers
    assert set(before) <= first
    puma.replace()
    assert not first & puma.workers
    seen: Counter[int] = Counter()
    end = time.monotonic() + TIMEOUT
    assert tracer.process.stdout
    while not puma.workers <= set(seen):
        assert time.monotonic() < end, seen
        puma.ask()
        seen += counted(tracer.process.stdout.readline())
    out, err, code = tracer.finish()
    assert code == 0, err
    for line in out.splitlines():
        seen += counted(line)
    assert {pid: seen[pid] for pid in first} == {
        pid: CALLS * before[pid] for pid in first
    }


def counted(line: str) -> Counter[int]:
    return Counter({g["key"]: g["count"] for g in json.loads(line)["groups"]})


def _called(path: Path) -> set[int]:
    """Who called, as far as it is written."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in whole]
    return {event["pid"] for event in events if event["method"] == "Web#call"}


def _until_all_are_seen(puma: Puma, workers: set[int], path: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not workers <= _called(path):
        assert time.monotonic() < end, f"{workers} of which only {_called(path)}"
        puma.ask()


def test_calls_through_a_phased_restart(
    puma: Puma, trace: Callable[..., Tracer], tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    words = ["--subprocesses", "-m", "Web#", "--json"]
    tracer = trace("calls", puma.pid, *words, env={"PYTHONUNBUFFERED": "1"})
    assert tracer.process.stdout
    copy = subprocess.Popen(
        ["cat"], stdin=tracer.process.stdout, stdout=path.open("wb")
    )
    _until_all_are_seen(puma, puma.workers, path)
    puma.replace()
    _until_all_are_seen(puma, puma.workers, path)
    tracer.process.send_signal(signal.SIGINT)
    assert tracer.process.wait(TIMEOUT) == 0
    copy.wait(TIMEOUT)
    end = json.loads(path.read_text().splitlines()[-1])
    assert (end["schema"], end["lost"]) == ("rbtrace-py/calls-end", 0)


def test_each_worker_answers_for_itself(puma: Puma) -> None:
    for _ in range(2):
        for pid in (puma.pid, *puma.workers):
            out, err, code = run("eval", pid, "Process.pid", "--json")
            assert code == 0, err
            assert json.loads(out)["value"] == str(pid)
        puma.replace()
