"""Names of the threads of processes, from their agents."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from rbtrace_py.agent.arming import Armed
from rbtrace_py.aggregate.calls import Thread

_ASK_SECONDS = 0.1
"""Between two questions."""
_MOST_ENDED = 1 << 16
"""Threads that may have ended, whose names are kept; a recorder runs for days."""


class ThreadNames:
    """known: of the threads last heard of; "" for those without a name."""

    def __init__(self) -> None:
        self.known: dict[Thread, str] = {}
        self._asked = -math.inf

    def learn(self, pid: int, armed: Armed) -> None:
        """Ask a process's agent for those that it has now."""
        found = {(pid, tid): name for tid, name in armed.threads().items()}
        ended = [each for each in self.known if each not in found]
        for each in ended[: max(0, len(self.known) - _MOST_ENDED)]:
            del self.known[each]
        self.known.update(found)

    def learn_again(self, armed: Iterable[tuple[int, Armed]]) -> None:
        """Learn the names again of processes that go on; at most now and then."""
        if time.monotonic() - self._asked < _ASK_SECONDS:
            return
        for pid, each in armed:
            if each.ended is None:
                self.learn(pid, each)
        self._asked = time.monotonic()
