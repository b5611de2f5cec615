"""Fixtures of probe tests: targets with probes of any shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crafted import Crafted


@pytest.fixture
def craft(root: None) -> Iterator[Callable[[], Crafted]]:
    """Start a target with such probes, and end all of them after the test."""
    targets: list[Crafted] = []

    def begin() -> Crafted:
        targets.append(Crafted())
        return targets[-1]

    yield begin
    for target in targets:
        target.close()


@pytest.fixture
def crafted(craft: Callable[[], Crafted]) -> Crafted:
    return craft()
