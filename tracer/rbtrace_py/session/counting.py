"""Sessions whose counting is done by the kernel or by the process itself."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from rbtrace_py.aggregate.results import Result
from rbtrace_py.linux.closing import Starting
from rbtrace_py.session.drive import Session
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

_COUNT_SECONDS = 0.05
"""Seconds between two checks of the count limit."""


class CountingSession(Starting, Session):
    """A session whose current result is available at any time."""

    targets: Targets
    words: tuple[str, ...]
    notes: Notes
    on_wait: Callable[[float], None] | None
    started_ns: int
    _last: Result | None = None

    @property
    def hint(self) -> str:
        """Hint for a user without results, or an empty string."""
        return ""

    @abstractmethod
    def snapshot(self) -> Result:
        """Return the current result; after ``finish``, the final one."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until an urgent event."""

    @property
    def seen(self) -> int:
        return self.snapshot().count

    def advance(self, until: float, most: int | None) -> None:
        left = max(0.0, until - time.monotonic())
        self.wait(min(left, _COUNT_SECONDS) if most else left)

    def take_interval(self) -> Result:
        """Return the result since the last call, without a cost."""
        last, self._last = self._last, replace(self.snapshot(), cost=None)
        return self._last if last is None else self._last.minus(last)
