"""Fixtures of all tests: real processes to trace, and the command to trace them with.

A target is a small Ruby program that says ``ready`` and then does one step of
known work for each line on its standard input, answering ``done``: nothing
here waits for time to pass.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import left_out
import rubies
from commands import Tracer
from processes import LIB, TARGETS, TIMEOUT, Target
from public_copy import PublicCopy

# The duration of an example depends on the machine, which may be busy.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Exclude some 7,000 tests, which live until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Restore signals as in a terminal. Allow chroots only in tests of `make
    test-all`."""
    heed_signals()
    rubies.is_allowed = any(map(item.get_closest_marker, ("rubies", "smoke")))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Skips are counted by reason. scripts/test.sh prints the counts of all its
    runs."""
    found = left_out.skips(terminalreporter.stats.get("skipped", []))
    if path := os.environ.get("RBTRACE_LEFT_OUT"):
        left_out.note(found, path)
    elif found:
        terminalreporter.section("left out")
        for line in left_out.lines(found, os.geteuid() == 0):
            terminalreporter.write_line(line)


def heed_signals() -> None:
    """Restore the signals that nohup, or a shell's &, makes programs ignore.

    A handler is not inherited, so SIGHUP still does not end the tests themselves. This
    is done before each test, because a command run in this process may have left Ctrl-C
    ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


@pytest.fixture(scope="session", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share the cache of compiled programs among the tests, and with no other
    process."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    (folder / "cache").mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("RBTRACE_CACHE_DIR", str(folder / "cache"))


@pytest.fixture(scope="session")
def public_copy() -> Iterator[PublicCopy]:
    """Yield a copy of the files that processes of other users read."""
    with tempfile.TemporaryDirectory(prefix="rbtrace-py-", dir="/tmp") as folder:
        yield PublicCopy(Path(folder))


@pytest.fixture(scope="session")
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")


@pytest.fixture
def small_disk(root: None, tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", folder], check=True
    )
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def start() -> Iterator[Callable[..., Target]]:
    """Start targets/NAME.rb with the gem, and end it after the test."""
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
    """Start ``rbtrace-py``, and kill it after the test."""
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
