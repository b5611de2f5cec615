"""The command as click runs it, in this process, without root."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import commands
from rbtrace_py.cli.main import main


@dataclass(frozen=True)
class Said:
    """The output of a run of the command, and its exit code."""

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
    """Request completions as a shell's script does, and return the lines."""

    def ask(shell: str, line: str, word: int) -> list[str]:
        at = str(word) if shell != "fish" else line.split(" ")[word]
        completing = {"_RBTRACE_PY_COMPLETE": f"{shell}_complete"}
        out, err, code = commands.run(
            env={**completing, "COMP_WORDS": line, "COMP_CWORD": at}
        )
        assert code == 0, err
        return out.splitlines()

    return ask
