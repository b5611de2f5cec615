"""Fixtures of end-to-end tests: a terminal, and a Ruby with its own probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from terminal import Terminal

from commands import has_ruby_probes


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start ``rbtrace-py`` on a terminal, and kill it after the test."""
    started: list[Terminal] = []

    def begin(*words, **rest) -> Terminal:
        started.append(Terminal(*words, **rest))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def ruby_probes() -> None:
    """Skip the test if the system's Ruby has no probes of its own."""
    if not has_ruby_probes():
        pytest.skip("the system's Ruby was built without --enable-dtrace")
