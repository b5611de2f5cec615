"""A server that forks workers and replaces them one by one while traced."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from web import answer_of

from commands import Tracer, run
from processes import LIB, TARGETS, TIMEOUT, read_line

CALLS = 2
"""Methods of Web that a request calls."""


class Puma:
    """A cluster of two workers, with the agent in each."""

    def __init__(self, place: Path, agent: str = "", **env: str) -> None:
        self._socket = place / "web.sock"
        self.process = subprocess.Popen(
            ["puma", "-C", str(TARGETS / "probes/puma_app.rb")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PLACE": str(place),
                "RUBYLIB": str(LIB),
                "RUBYOPT": "" if agent else "-rtracepoint/agent",
                "AGENT": agent,
                **env,
            },
        )
        self.workers = self.booted()

    @property
    def pid(self) -> int:
        return self.process.pid

    def booted(self) -> set[int]:
        """Return the PIDs of the next two workers that report their start."""
        pids: set[int] = set()
        while len(pids) < 2:
            line = read_line(self.process.stdout)
            assert line, "puma has ended"
            found = re.search(r"Worker \d \(PID: (\d+)\) booted", line)
            pids |= {int(found[1])} if found else set()
        return pids

    def ask(self, path: str = "/") -> int:
        """Return the PID of the worker that served a request."""
        return int(answer_of(self._socket, path))

    def replace(self) -> None:
        """Do a phased restart: the workers are replaced one after the other."""
        self.process.send_signal(signal.SIGUSR1)
        self.workers = self.booted()

    def close(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT)


def need_puma() -> None:
    if shutil.which("puma") is None:
        pytest.skip("no puma: scripts/setup.sh --test installs it")


@pytest.fixture
def puma(tmp_path: Path) -> Iterator[Puma]:
    need_puma()
    server = Puma(tmp_path)
    yield server
    server.close()


@pytest.fixture
def workers_alone(tmp_path: Path) -> Iterator[Puma]:
    """A Puma whose workers have the agent and whose parent does not."""
    need_puma()
    server = Puma(tmp_path, agent="workers")
    yield server
    server.close()


@pytest.mark.parametrize(
    "words", [["calls", "-m", "Web#"], ["latency", "method"], ["latency", "-m", "Web#"]]
)
def test_a_parent_without_an_agent_is_left_out(
    words: list[str], workers_alone: Puma, trace: Callable[..., Tracer]
) -> None:
    pid = workers_alone.pid
    tracer = trace(words[0], pid, *words[1:], "--subprocesses", "--json")
    served = Counter(workers_alone.ask() for _ in range(10))
    out, err, code = tracer.finish()
    assert code == 0, err
    assert f"skipping process {pid}: no agent in process" in " ".join(err.split())
    if words[0] == "calls":
        events = map(json.loads, out.splitlines()[:-1])
        called = Counter(e["pid"] for e in events if e["method"].startswith("Web#"))
        assert called == {pid: CALLS * number for pid, number in served.items()}
    else:
        groups = json.loads(out)["groups"]
        assert sum(g["count"] for g in groups if "Web#" in g["key"]) == CALLS * 10


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
    """Return the callers in the output so far."""
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


def test_reports_leave_out_idle_threads(puma: Puma, tmp_path: Path) -> None:
    """The idle threads of each worker are its pool, reactor, acceptor, and main
    thread. A held request is not idle."""
    os.mkfifo(tmp_path / "held")
    asking = threading.Thread(target=puma.ask, args=("/hold",))
    asking.start()
    words = ["stacks", puma.pid, "--subprocesses", "--mode", "wall", "-n", 200]
    with (tmp_path / "held").open("wb"):  # it opens once it is read
        out, err, code = run(*words)
    asking.join()
    assert code == 0, err
    (busy,) = (one for one in out.splitlines() if "ThreadPool#spawn_thread" in one)
    assert "Web#call" in busy
    assert "Puma::Reactor#select_loop" not in out
    assert "Puma::Server#handle_servers" not in out
    assert "Thread#join" not in out
    assert re.search(r"\d+ m?s of idle threads is left out; --idle shows it", err)
    out, err, _ = run(*words, "--idle")
    assert "Puma::ThreadPool#spawn_thread" in out
    assert "Puma::Reactor#select_loop" in out
    assert "left out" not in err


def test_stats_of_each_worker(tmp_path: Path, trace: Callable[..., Tracer]) -> None:
    """Each worker reports its load every second while it is traced."""
    need_puma()
    os.mkfifo(tmp_path / "held")
    puma = Puma(tmp_path, PLUGIN="1")
    try:
        tracer = trace("trace", puma.pid, "puma:stats", "--subprocesses", "--json")
        idle = {"backlog": 0, "busy": 0, "threads": 1, "max": 1}
        assert next_stats(tracer, puma.workers) == dict.fromkeys(puma.workers, idle)
        served: list[int] = []
        asking = threading.Thread(target=lambda: served.append(puma.ask("/hold")))
        asking.start()
        busy = {**idle, "busy": 1}
        while busy not in (stats := next_stats(tracer, puma.workers)).values():
            pass
        (tmp_path / "held").write_bytes(b"")
        asking.join()
        assert stats == {p: busy if p in served else idle for p in puma.workers}
        while busy in next_stats(tracer, puma.workers).values():
            pass
        puma.replace()
        assert next_stats(tracer, puma.workers) == dict.fromkeys(puma.workers, idle)
        out, err, code = tracer.finish()
        assert code == 0, out + err
    finally:
        puma.close()


def next_stats(tracer: Tracer, workers: set[int]) -> dict[int, dict[str, int]]:
    """Return each worker's next report, by PID."""
    said: dict[int, dict[str, int]] = {}
    assert tracer.process.stdout
    while set(said) != workers:
        event = json.loads(tracer.process.stdout.readline())
        if event["pid"] in workers:
            said[event["pid"]] = event["arguments"]
    return said
