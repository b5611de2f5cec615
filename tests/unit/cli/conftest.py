"""The command as click runs it, in this process, without root."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rbtrace_py.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Said:
    """What a run of the command wrote, and its exit code."""

    out: str
    err: str
    code: int


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run ``rbtrace-py`` with these words."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*words: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main(list(words))
        code = end.value.code
        return Said(out.getvalue(), err.getvalue(), code if type(code) is int else 0)

    return run


@pytest.fixture
def complete() -> Callable[[str, str, int], list[str]]:
    """Ask for completions as a shell's script does; the lines of the answer."""

    def ask(shell: str, line: str, word: int) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", "from rbtrace_py.cli.main import main; main()"],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "tracer"),
                "_RBTRACE_PY_COMPLETE": f"{shell}_complete",
                "COMP_WORDS": line,
                "COMP_CWORD": str(word) if shell != "fish" else line.split(" ")[word],
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return ask
