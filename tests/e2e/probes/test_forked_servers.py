"""Servers that fork their workers, traced from outside: each alone, and as a process
tree."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from web import answer_of

from commands import answer
from processes import LIB, TARGETS, TIMEOUT, read_line

CONFIGURATION = TARGETS / "probes/forked_server.rb"
BOOTED = r"Worker \d \(PID: (\d+)\) booted|#(\d+)\] .*worker=\d ready"
"""The message of Puma's parent, or of a Unicorn worker, about a started worker."""
COMMANDS = {
    "puma": ["puma", "-C", CONFIGURATION],
    "unicorn": ["unicorn", "-c", CONFIGURATION, TARGETS / "probes/forked_app.ru"],
}
EACH = ["rack:request", "web:after", "web:before"]
"""Probes that fire once per request."""
LEAST = 5
"""The minimum number of requests per worker."""


class Server:
    """A parent and two workers.

    With ``preloads``, the parent loads the application and so has the probes.
    """

    def __init__(self, kind: str, place: Path, preloads: bool) -> None:
        self._socket = place / "web.sock"
        self.process = subprocess.Popen(
            list(map(str, COMMANDS[kind])),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "PLACE": str(place),
                "PRELOAD": "1" if preloads else "",
                "RUBYLIB": str(LIB),
            },
        )
        self.workers = self.booted(2)

    def booted(self, number: int) -> set[int]:
        """Wait until ``number`` workers have started. Return their PIDs."""
        pids: set[int] = set()
        while len(pids) < number:
            line = read_line(self.process.stdout)
            assert line, "the server has ended"
            found = re.search(BOOTED, line)
            pids |= {int(found[1] or found[2])} if found else set()
        return pids

    def serve(self, workers: set[int]) -> Counter[int]:
        """Send requests until each of these workers has answered. Return the count
        per process."""
        served: Counter[int] = Counter()
        end = time.monotonic() + TIMEOUT
        while any(served[pid] < LEAST for pid in workers):
            assert time.monotonic() < end, served
            served[int(answer_of(self._socket))] += 1
        return served

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture(params=["puma", "unicorn"])
def kind(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}: scripts/setup.sh --test installs it")
    return request.param


@pytest.fixture(params=[True, False], ids=["preloaded", "parent-without-probes"])
def server(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Server]:
    server = Server(kind, tmp_path, request.param)
    yield server
    server.close()


def by_series_and_pid(document) -> dict[tuple[str, int], int]:
    return {
        (group["series"].removesuffix("__end"), group["key"]): group["count"]
        for group in document["groups"]
    }


def test_all_and_one_by_one(server: Server, trace) -> None:
    words = [*EACH, "--by", "pid", "--json"]
    family = trace("count", server.process.pid, *words, "--subprocesses")
    alone = {pid: trace("count", pid, *words) for pid in server.workers}
    served = server.serve(server.workers)
    assert set(served) == server.workers
    expected = {
        (probe, pid): number for pid, number in served.items() for probe in EACH
    }
    assert by_series_and_pid(answer(family)) == expected
    for pid, tracer in alone.items():
        own = {key: count for key, count in expected.items() if key[1] == pid}
        assert by_series_and_pid(answer(tracer)) == own


def test_a_worker_that_is_forked_while_it_is_traced(
    kind: str, tmp_path: Path, trace
) -> None:
    """Probes that exist before the fork are counted from the worker's first event."""
    server = Server(kind, tmp_path, preloads=True)
    try:
        words = ["rack:request", "web:before", "--by", "pid", "--json"]
        tracer = trace("count", server.process.pid, *words, "--subprocesses")
        server.process.send_signal(signal.SIGTTIN)  # starts one more worker
        (late,) = server.booted(1)
        served = server.serve({*server.workers, late})
        assert by_series_and_pid(answer(tracer)) == {
            (probe, pid): number
            for pid, number in served.items()
            for probe in ("rack:request", "web:before")
        }
    finally:
        server.close()
