"""Names of the threads of processes, from their agents."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from rbtrace_py.agent.arming import Armed
from rbtrace_py.aggregate.calls import Thread

_ASK_SECONDS = 0.1
"""Minimum seconds between two requests."""
_MOST_ENDED = 1 << 16
"""Maximum number of kept names of threads that may have ended."""


class ThreadNames:
    """The names of threads.

    Attributes:
        known: Names by thread; "" for a thread without a name.
    """

    def __init__(self) -> None:
        self.known: dict[Thread, str] = {}
        self._asked = -math.inf

    def learn(self, pid: int, armed: Armed) -> None:
        """Request the names of a process's current threads from its agent."""
        found = {(pid, tid): name for tid, name in armed.threads().items()}
        ended = [each for each in self.known if each not in found]
        for each in ended[: max(0, len(self.known) - _MOST_ENDED)]:
            del self.known[each]
        self.known.update(found)

    def learn_again(self, armed: Iterable[tuple[int, Armed]]) -> None:
        """Request the names of live processes' threads again, but not too often."""
        if time.monotonic() - self._asked < _ASK_SECONDS:
            return
        for pid, each in armed:
            if each.ended is None:
                self.learn(pid, each)
        self._asked = time.monotonic()
