"""Rubies from 2.1 to 2.6, which are read but not traced. RBTRACE_RUBY names one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ruby_builds
from commands import run
from rubies import Running
from ruby_builds import Build, each_old_build

pytestmark = [each_old_build, pytest.mark.usefixtures("root")]


@pytest.fixture
def old(build: Build) -> Iterator[Running]:
    """A Ruby with waiting threads, which have no names."""
    with ruby_builds.running(build, "stacks/stack_old.rb") as process:
        yield process


def check(target: str, process: Running, *words: str) -> None:
    """Check that all threads of a dump are as in Ruby."""
    out, err, code = run("dump", target, *words, "--json")
    assert code == 0, err
    (document,) = json.loads(out)["processes"]
    assert document["failed"] == 0
    found = [seen(thread) for thread in document["threads"] if not thread["main"]]
    assert found == json.loads(process.ready.removeprefix("ready "))


def seen(thread: Any) -> list[list[Any]]:
    """Return the path, line, and label of each frame, newest first."""
    assert not thread["trimmed"]
    return [
        [frame["path"], frame["line"], frame["label"]] for frame in thread["frames"]
    ]


def test_dump(old: Running) -> None:
    check(str(old.pid), old)


def test_core(old: Running, tmp_path: Path) -> None:
    check(str(ruby_builds.core_of(old.pid, tmp_path)), old)


def test_stacks(old: Running) -> None:
    words = ("--mode", "wall", "-d", "1", "--format", "json")
    out, err, code = run("stacks", old.pid, *words)
    assert code == 0, err
    document = json.loads(out)
    seen = {frame["label"] for frame in document["frames"]}
    assert {"wait", "greet", "blocks", "recursive"} <= seen
    assert document["lost"] == 0
