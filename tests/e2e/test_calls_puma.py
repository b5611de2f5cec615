"""``calls`` in Puma's cluster mode: every worker, through a phased restart."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import LIB, TIMEOUT, Tracer, read_line

APP = """\
class App
  def call(env)
    [200, {}, [body]]
  end

  def body
    "hi"
  end
end
run App.new
"""
CONFIG = """\
workers 2
threads 1, 2
bind "unix://{path}"
"""


class Puma:
    """A master with two workers; ``workers`` of the newest phase."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "web.sock")
        (folder / "config.ru").write_text(APP)
        (folder / "puma.rb").write_text(CONFIG.format(path=self._path))
        options = f"-I{LIB} -rtracepoint/agent"
        self.process = subprocess.Popen(
            ["puma", "-C", "puma.rb"],
            cwd=folder,
            env={**os.environ, "RUBYOPT": options, "RACK_ENV": "production"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.workers = self.booted()

    def booted(self) -> set[int]:
        """Wait for two workers, and say who they are."""
        found: set[int] = set()
        while len(found) < 2:
            line = read_line(self.process.stdout)
            assert line, "puma has ended"
            worker = re.search(r"Worker \d \(PID: (\d+)\) booted", line)
            if worker:
                found.add(int(worker[1]))
        return found

    def request(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(self._path)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while more := connection.recv(4096):
                answer += more
        assert answer.endswith(b"hi")

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def puma(tmp_path: Path) -> Iterator[Puma]:
    if not shutil.which("puma"):
        pytest.skip("no puma here: apt-get install puma")
    made = Puma(tmp_path)
    yield made
    made.close()


def _called(path: Path) -> set[int]:
    """Who called, as far as it is written."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in whole]
    return {event["pid"] for event in events if event["method"] == "App#call"}


def _until_all_are_seen(puma: Puma, workers: set[int], path: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not workers <= _called(path):
        assert time.monotonic() < end, f"{workers} of which only {_called(path)}"
        puma.request()


def test_through_a_phased_restart(
    puma: Puma, trace: Callable[..., Tracer], tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    words = ["--subprocesses", "-m", "App#", "--json"]
    tracer = trace("calls", puma.process.pid, *words, env={"PYTHONUNBUFFERED": "1"})
    assert tracer.process.stdout
    copy = subprocess.Popen(
        ["cat"], stdin=tracer.process.stdout, stdout=path.open("wb")
    )
    _until_all_are_seen(puma, puma.workers, path)
    puma.process.send_signal(signal.SIGUSR1)
    fresh = puma.booted()
    assert not fresh & puma.workers
    _until_all_are_seen(puma, fresh, path)
    tracer.process.send_signal(signal.SIGINT)
    assert tracer.process.wait(TIMEOUT) == 0
    copy.wait(TIMEOUT)
    end = json.loads(path.read_text().splitlines()[-1])
    assert (end["schema"], end["lost"]) == ("rbtrace-py/calls-end", 0)
