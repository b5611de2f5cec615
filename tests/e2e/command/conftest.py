"""Fixtures of command tests: a target that is watched for leftovers."""

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
    """A target shared by all tests: the next one would notice what a command leaves."""
    yield from _watched(folder)


@pytest.fixture(scope="module")
def unaware(folder: Path, root: None) -> Iterator[Watched]:
    """The same target without an agent."""
    yield from _watched(folder, "bare")


def _watched(folder: Path, *words: str) -> Iterator[Watched]:
    env = {"TRACEPOINT_AGENT_DIR": str(folder / "agent")}
    target = Target("ruby", str(TARGETS / "probes/watched.rb"), *words, env=env)
    with closing(target), orphans_are_ours():
        yield Watched(target, folder)
