"""Fixtures of tests of commands: a target that is watched for what is left in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from leftovers import Watched, orphans_are_ours

from processes import TARGETS, Target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("watched")
    (made / "agent").mkdir(mode=0o700)
    (made / "tmp").mkdir()
    return made


@pytest.fixture(scope="module")
def watched(folder: Path, root: None) -> Iterator[Watched]:
    """One for all: what one command leaves would be seen by the next, too."""
    yield from _watched(folder)


@pytest.fixture(scope="module")
def unaware(folder: Path, root: None) -> Iterator[Watched]:
    """The same without an agent."""
    yield from _watched(folder, "bare")


def _watched(folder: Path, *words: str) -> Iterator[Watched]:
    env = {"TRACEPOINT_AGENT_DIR": str(folder / "agent")}
    target = Target("ruby", str(TARGETS / "probes/watched.rb"), *words, env=env)
    with closing(target), orphans_are_ours():
        yield Watched(target, folder)
