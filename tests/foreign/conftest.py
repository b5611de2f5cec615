"""The program that the tools trace, and bpftrace."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .tools import LIBRARY, Bpftrace, Target, need_root


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("libstapsdt")
    subprocess.run(
        ["make", "-s", "-C", LIBRARY, f"BUILD={build}", f"{build}/target"], check=True
    )
    return build / "target"


@pytest.fixture
def start(program: Path) -> Iterator[Callable[..., Target]]:
    started: list[Target] = []

    def starter(**environment: str) -> Target:
        started.append(Target(program, **environment))
        return started[-1]

    yield starter
    for target in started:
        target.close()


@pytest.fixture
def target(start: Callable[..., Target]) -> Target:
    return start()


@pytest.fixture
def bpftrace() -> Iterator[Callable[[int, str], Bpftrace]]:
    need_root()
    started: list[Bpftrace] = []

    def starter(pid: int, script: str) -> Bpftrace:
        started.append(Bpftrace(pid, script))
        return started[-1]

    yield starter
    for tracer in started:
        tracer.close()
