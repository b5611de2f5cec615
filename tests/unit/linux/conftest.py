"""The target program, compiled once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from linux_targets import HERE, compile_c


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``target.c``, static, so that it runs in any root."""
    output = tmp_path_factory.mktemp("target") / "target"
    return compile_c(HERE / "target.c", output, "-static")


@pytest.fixture
def open_bytes(tmp_path: Path) -> Iterator[Callable[[bytes], int]]:
    """Open bytes as a file; it is closed after the test."""
    opened: list[int] = []

    def open_them(data: bytes) -> int:
        path = tmp_path / f"file{len(opened)}"
        path.write_bytes(data)
        opened.append(os.open(path, os.O_RDONLY))
        return opened[-1]

    yield open_them
    for fd in opened:
        os.close(fd)
