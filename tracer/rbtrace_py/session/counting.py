"""Sessions that something else counts for: the kernel, or the process itself."""

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
"""How often it is asked whether there is enough."""


class CountingSession(Starting, Session):
    """A session whose answer so far is there at any time."""

    targets: Targets
    words: tuple[str, ...]
    notes: Notes
    on_wait: Callable[[float], None] | None
    started_ns: int
    _last: Result | None = None

    @property
    def hint(self) -> str:
        """Hint for a user who has got nothing; or empty."""
        return ""

    @abstractmethod
    def snapshot(self) -> Result:
        """The answer so far; the whole of it once it is finished."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """So long, or until there is news that should not wait."""

    @property
    def seen(self) -> int:
        return self.snapshot().count

    def advance(self, until: float, most: int | None) -> None:
        left = max(0.0, until - time.monotonic())
        self.wait(min(left, _COUNT_SECONDS) if most else left)

    def take_interval(self) -> Result:
        """Return what came since the last call; the cost is one of the whole."""
        last, self._last = self._last, replace(self.snapshot(), cost=None)
        return self._last if last is None else self._last.minus(last)
