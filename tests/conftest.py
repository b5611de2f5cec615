"""Real processes to trace, and the command to trace them with.

A target is a small Ruby program that says ``ready`` and then does one step of
known work for each line on its standard input, answering ``done``: nothing
here waits for time to pass.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import rubies
from processes import (
    LIB,
    MAIN,
    ROOT,
    TARGETS,
    TIMEOUT,
    Target,
    is_soak,
    read_line,
    times,
)
from public_copy import PublicCopy

__all__ = [
    "LIB",
    "MAIN",
    "ROOT",
    "TARGETS",
    "TIMEOUT",
    "Target",
    "is_soak",
    "read_line",
    "times",
]

sys.path.insert(0, str(ROOT / "tracer"))

# How long an example takes is the machine's business: it may have a lot else to do.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


class Tracer:
    """``rbtrace-py`` as a process that was told to say when it is attached.

    waits: until it is attached, or has ended
    """

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, waits: bool = True
    ) -> None:
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(write,),
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "tracer"),
                "RBTRACE_READY_FD": str(write),
                **(env or {}),
            },
        )
        os.close(write)
        with os.fdopen(read) as ready:
            self.attached = waits and read_line(ready) == "attached"
        if waits and not self.attached:
            out, err = self.process.communicate(timeout=TIMEOUT)
            raise AssertionError(f"it ended before it was attached: {out}{err}")

    def finish(self, number: int = signal.SIGINT) -> tuple[str, str, int]:
        """Press Ctrl-C; output, errors and exit code."""
        self.process.send_signal(number)
        return self.result()

    def result(self) -> tuple[str, str, int]:
        out, err = self.process.communicate(timeout=TIMEOUT)
        return out, err, self.process.returncode


@functools.cache
def has_ruby_probes() -> bool:
    """Was this machine's Ruby built with probes of its own? Debian's 3.3 was not."""
    from rbtrace_py.linux.probes import find_probes
    from rbtrace_py.linux.process import Process

    target = Target("ruby", "-e", "$stdout.sync = true; puts :ready; gets")
    try:
        probes = find_probes(Process(target.pid))
        return any(probe.provider == "ruby" for probe in probes)
    finally:
        target.close()


def if_ruby_has(*words: str) -> list[str]:
    """Words for Ruby's own probes, where it has any."""
    return list(words) if has_ruby_probes() else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chroots are only for the tests that `make test` leaves to `make test-all`."""
    rubies.is_allowed = any(map(item.get_closest_marker, ("rubies", "smoke")))


@pytest.fixture(scope="session", autouse=True)
def _signals_are_not_ignored() -> None:
    """Programs that tests start get the signals that nohup, or a shell's &, ignores.

    A handler is not inherited, so SIGHUP still does not end the tests themselves.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


@pytest.fixture(scope="session", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs compiled by one test serve the others, and no one else."""
    if "RBTRACE_CACHE_DIR" not in os.environ:
        os.environ["RBTRACE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def public_copy() -> Iterator[PublicCopy]:
    """What processes of other users read."""
    with tempfile.TemporaryDirectory(prefix="rbtrace-py-", dir="/tmp") as folder:
        yield PublicCopy(Path(folder))


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")


@pytest.fixture
def start() -> Iterator[Callable[..., Target]]:
    """Start targets/NAME.rb with the gem; ended after the test."""
    started: list[Target] = []

    def begin(name: str, *arguments: str, env: dict[str, str] | None = None) -> Target:
        path = name if name.startswith("/") else str(TARGETS / name)
        ruby = shutil.which("ruby")
        assert ruby, "Ruby is missing; `make setup` installs it"
        target = Target(ruby, f"-I{LIB}", path, *arguments, env=env)
        started.append(target)
        return target

    yield begin
    for target in started:
        target.close()


@pytest.fixture
def trace(root: None) -> Iterator[Callable[..., Tracer]]:
    """Start ``rbtrace-py`` with these words; killed after the test."""
    started: list[Tracer] = []

    def begin(
        *words: object, env: dict[str, str] | None = None, waits: bool = True
    ) -> Tracer:
        tracer = Tracer(*map(str, words), env=env, waits=waits)
        started.append(tracer)
        return tracer

    yield begin
    for tracer in started:
        if tracer.process.poll() is None:
            tracer.process.kill()
        tracer.process.wait(TIMEOUT)
        for stream in (tracer.process.stdout, tracer.process.stderr):
            if stream:
                stream.close()


def run(*words: object, env: dict[str, str] | None = None) -> tuple[str, str, int]:
    """Run ``rbtrace-py`` to its end: output, errors, exit code."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer"), **(env or {})},
    )
    return done.stdout, done.stderr, done.returncode


def answer(tracer: Tracer) -> Any:
    """Press Ctrl-C and read the JSON document it ends with."""
    out, err, code = tracer.finish()
    assert code == 0, out + err
    return json.loads(out)


def by_key(document: Any) -> dict[Any, int]:
    """Counts of a document's groups by key."""
    return {group["key"]: group["count"] for group in document["groups"]}
