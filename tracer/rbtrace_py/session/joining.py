"""Children that have no agent: one that has just begun may have one soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.session.targets import Targets

_SECONDS = 5.0
"""How long a child is tried again."""


class Joining:
    """Those of ``targets`` that could not be asked yet.

    join: asks one; may raise RbtraceError
    without: since when by the monotonic clock each pid has been left out
    late: how many joined after they had begun
    """

    def __init__(self, targets: Targets, join: Callable[[Process], object]) -> None:
        self.without: dict[int, float] = {}
        self.late = 0
        self._targets = targets
        self._join = join

    def leave(self, process: Process) -> None:
        """It could not be asked: to be tried again."""
        self.without[process.pid] = time.monotonic()

    def look(self) -> None:
        """Find children that are new; try those that are left out and young."""
        alive = self._targets.alive()
        fresh = self._targets.refresh()
        now = time.monotonic()
        self.without.update(dict.fromkeys((p.pid for p in fresh), now))
        for process in (*alive, *fresh):
            since = self.without.get(process.pid)
            if since is not None and now - since < _SECONDS:
                self._try(process)

    def _try(self, process: Process) -> None:
        try:
            self._join(process)
        except RbtraceError:
            return
        del self.without[process.pid]
        self.late += 1
