"""One process of each Ruby, for all tests that only read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from processes import Target
from rbtrace_py.linux.process import Process
from rubies import command

_TARGETS: dict[str, Any] = {}


@pytest.fixture
def ruby(request: pytest.FixtureRequest, root: None) -> Iterator[Process]:
    """A waiting process of the Ruby with which the test is parametrized."""
    name = request.param
    if name not in _TARGETS:
        _TARGETS[name] = Target(*command(name))
    with Process(_TARGETS[name].pid) as process:
        yield process


@pytest.fixture(scope="session", autouse=True)
def _ended() -> Iterator[None]:
    yield
    while _TARGETS:
        _TARGETS.popitem()[1].close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a separate cache, so that tests do not share discovered layouts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
