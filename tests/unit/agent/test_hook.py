"""The hook, built from its source and cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rbtrace_py.agent import hook as module
from rbtrace_py.agent.hook import NotBuilt, hook


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "rbtrace-py" / "agent"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that replaces the agent's."""
    path = tmp_path / "agent.c"
    path.write_text("int nothing;\n")
    sources = tmp_path / "sources.txt"
    sources.write_text("agent.c\n")
    monkeypatch.setattr(module, "SOURCES", sources)
    return path


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = hook()
    assert built.startswith(b"\x7fELF")
    assert b"Init_agent_hook" in built
    monkeypatch.setenv("CC", "/bin/false")
    assert hook() == built


def test_another_source(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook()
    source.write_text("int something;\n")
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(NotBuilt, match="/bin/false could not build"):
        hook()


def test_words_of_cc(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiler(cache.parents[1], 'echo "error: $1" >&2; exit 1')
    monkeypatch.setenv("CC", f"{path} --of-mine")
    with pytest.raises(NotBuilt, match="error: --of-mine"):
        hook()


def test_the_error_is_told(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the compiler's line with the error, without terminal control characters."""
    script = "echo warning >&2; printf 'fatal error: \\033[31mno.h\\n' >&2; exit 1"
    monkeypatch.setenv("CC", compiler(cache.parents[1], script))
    with pytest.raises(NotBuilt) as caught:
        hook()
    assert str(caught.value).endswith("fatal error: \\x1b[31mno.h")
    assert "libc6-dev" in caught.value.hint


def test_no_compiler(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache.parents[1]))
    with pytest.raises(NotBuilt, match="no C compiler found"):
        hook()


def test_no_source(cache: Path, source: Path) -> None:
    source.unlink()
    with pytest.raises(NotBuilt, match="source is missing"):
        hook()


def test_without_a_cache(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert hook().startswith(b"\x7fELF")
