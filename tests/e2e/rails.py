"""The bench's Rails application under puma, with the agent."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import LIB, ROOT, TIMEOUT, read_line

ANY_PORT = "tcp://127.0.0.1:0"
FOLDER = ROOT / "tests" / "bench" / "rails"
THREADS = 3


def need_rails() -> None:
    """Skip the test where it cannot run."""
    words = ["ruby", "-e", "require 'rails'; require 'sqlite3'"]
    has_rails = not subprocess.run(words, capture_output=True).returncode
    if not has_rails or not shutil.which("puma"):
        pytest.skip("no Rails, sqlite3 or puma: scripts/setup.sh --test installs them")


class Rails:
    """The application while it runs; folder: of its database."""

    def __init__(self, folder: Path, rackup: Path = FOLDER / "config.ru") -> None:
        need_rails()
        self.process = subprocess.Popen(
            ["puma", "-t", f"{THREADS}:{THREADS}", "-b", ANY_PORT, str(rackup)],
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "SHOP_DATABASE": str(folder / "shop.sqlite3"),
                "RUBYOPT": f"-I{LIB} -rtracepoint/agent",
            },
        )
        self._port = self._listening_at()
        self.get()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _listening_at(self) -> int:
        """Return the port; puma says it once it takes connections."""
        log = []
        while line := read_line(self.process.stdout):
            log.append(line)
            if found := re.search(r"Listening on http://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        self.close()
        raise AssertionError("the application did not begin\n" + "\n".join(log))

    def get(self, path: str = "/items") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, TIMEOUT)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == 200

    def get_often(self, count: int) -> None:
        """Ask for ``count`` pages in each of several threads."""
        in_threads(lambda _: [self.get() for _ in range(count)])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


def in_threads(ask: Callable[[int], object]) -> None:
    """Run it, with a number each, in as many threads as serve requests."""
    asking = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
