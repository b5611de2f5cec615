"""Rails applications under puma: the bench's with the agent, and the example."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from processes import LIB, ROOT, TIMEOUT, comes_true, read_line

ANY_PORT = "tcp://127.0.0.1:0"
FOLDER = ROOT / "tests" / "bench" / "rails"
EXAMPLE = ROOT / "examples" / "rails"
THREADS = 3


def need_rails() -> None:
    """Skip the test if Rails cannot run."""
    words = ["ruby", "-e", "require 'rails'; require 'sqlite3'"]
    has_rails = not subprocess.run(words, capture_output=True).returncode
    if not has_rails or not shutil.which("puma"):
        pytest.skip("no Rails, sqlite3 or puma: scripts/setup.sh --test installs them")


def need_sidekiq() -> None:
    """Skip the test if Sidekiq cannot run."""
    if not shutil.which("sidekiq") or not shutil.which("redis-server"):
        pytest.skip("no Sidekiq or redis-server: scripts/setup.sh --test installs them")


class Rails:
    """The running application, with its database in ``folder``."""

    def __init__(self, folder: Path, rackup: Path = FOLDER / "config.ru") -> None:
        self._start(
            ["puma", "-t", f"{THREADS}:{THREADS}", "-b", ANY_PORT, str(rackup)],
            {
                "SHOP_DATABASE": str(folder / "shop.sqlite3"),
                "RUBYOPT": f"-I{LIB} -rtracepoint/agent",
            },
        )
        self.get()

    def _start(self, words: Sequence[str], env: dict[str, str]) -> None:
        need_rails()
        self.process = subprocess.Popen(
            words,
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
        )
        found = self._await_line(r"Listening on http://127\.0\.0\.1:(\d+)")
        self._port = int(found[1])

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _await_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line of puma's output and return the match."""
        log = []
        while line := read_line(self.process.stdout):
            log.append(line)
            if found := re.search(pattern, line):
                return found
        self.close()
        raise AssertionError("the application did not begin\n" + "\n".join(log))

    def get(self, path: str = "/items") -> None:
        assert self.ask("GET", path) == 200

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        **form: object,
    ) -> int:
        """Return the status of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, TIMEOUT)
        body = urllib.parse.urlencode(form) if form else None
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
        connection.request(method, path, body, {**kind, **headers})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def get_often(self, count: int) -> None:
        """Request ``count`` pages in each of several threads."""
        in_threads(lambda _: [self.get() for _ in range(count)])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


class RailsExample(Rails):
    """examples/rails, in two workers and Sidekiq.

    ``folder`` holds the database and the logs. ``env`` has further environment
    variables. ``workers`` has the PIDs of the workers.
    """

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        need_sidekiq()
        self.log = folder / "shop.log"
        self._jobs = folder / "sidekiq.log"
        self._start(
            [str(EXAMPLE / "start")],
            {
                "RUBYLIB": str(LIB),
                "SHOP_FOLDER": str(folder),
                "SHOP_BIND": ANY_PORT,
                **(env or {}),
            },
        )
        booted = r"Worker \d+ \(PID: (\d+)\) booted"
        self.workers = [int(self._await_line(booted)[1]) for _ in range(2)]

    def finished_jobs(self) -> int:
        """Return the number of finished jobs in Sidekiq's log."""
        return len(re.findall(r": (?:done|fail)$", self._jobs.read_text(), re.M))

    def await_jobs(self, count: int) -> None:
        """Wait until Sidekiq has finished ``count`` jobs."""
        have_ended = comes_true(lambda: self.finished_jobs() >= count, pause=0.02)
        assert have_ended, self._jobs.read_text()

    def close(self) -> None:
        """End the parent, which ends all processes that it started."""
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT)


def in_threads(ask: Callable[[int], object]) -> None:
    """Run a function in as many threads as serve requests, each with its number."""
    asking = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
