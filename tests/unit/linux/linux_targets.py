"""Small real programs to look at, and how to start and end them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import Target

HERE = Path(__file__).parent
LIBRARY = HERE.parents[2] / "ext" / "libstapsdt"


def compile_c(source: Path, output: Path, *flags: str) -> Path:
    """Compile a C file, or skip the test without a compiler."""
    import pytest

    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    command = ["gcc", "-O1", str(source), "-o", str(output), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"gcc: {done.stderr}")
    return output


@contextlib.contextmanager
def running(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that says "ready" and ends with its standard input."""
    target = Target(*command, **options)
    target.process.ready_line = target.ready  # type: ignore[attr-defined]
    try:
        yield target.process
    finally:
        target.close()


def is_root() -> bool:
    return os.geteuid() == 0
