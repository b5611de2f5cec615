"""Consistency counters: how often reads of a VM agreed, by topic.

The program may cause a single disagreement: an ``eval`` can have any path and line. If
most reads disagree, an offset is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum


class Topic(Enum):
    """A comparison, and the failure rate from which on it is in doubt."""

    NAMES = ("methods have other names than their code", 0.25)
    LINES = ("lines differ from the source", 0.1)
    PATHS = ("paths are labels", 1.0)

    def __init__(self, failure: str, limit: float) -> None:
        self.failure = failure
        self.limit = limit


class Consistency:
    """Counts comparisons."""

    def __init__(self) -> None:
        self._made: Counter[Topic] = Counter()
        self._failed: Counter[Topic] = Counter()

    def add(self, topic: Topic, agrees: bool) -> None:
        """Count one comparison."""
        self._made[topic] += 1
        self._failed[topic] += not agrees

    def doubts(self) -> Iterator[str]:
        """Yield the doubts in words."""
        for topic in Topic:
            made, failed = self._made[topic], self._failed[topic]
            if failed and failed >= topic.limit * made:
                yield topic.failure
