"""Fixtures of end-to-end tests: a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from terminal import Terminal


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start ``rbtrace-py`` with these words on a terminal; killed after the test."""
    started: list[Terminal] = []

    def begin(*words, **rest) -> Terminal:
        started.append(Terminal(*words, **rest))
        return started[-1]

    yield begin
    for each in started:
        each.close()
