"""Processes among the targets that are no Ruby, or none that can be read: not yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from rbtrace_py.linux.process import Process

_FIRST_SECONDS = 0.05
_LONGEST_SECONDS = 5.0


@dataclass(slots=True)
class _NonRubyProcess:
    """The program it ran, how long it was left alone, and until when."""

    exe: str | None
    wait: float
    due: float


class NonRubyProcesses:
    """The times at which to look at each process again.

    What is no Ruby may become one: a shell runs it in its own place, and a Ruby that
    has just begun has not mapped its library yet. So each is looked at again where it
    runs another program, and else ever more seldom.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[int, int], _NonRubyProcess] = {}

    def add(self, process: Process, may_become: bool = True) -> None:
        """It was looked at; ``may_become``: also without another program."""
        known, exe = self._known.get(process.identity), process.exe
        wait = _FIRST_SECONDS
        if known is not None and known.exe == exe:
            wait = min(2 * known.wait, _LONGEST_SECONDS)
        due = self._clock() + wait if may_become else inf
        self._known[process.identity] = _NonRubyProcess(exe, wait, due)

    def is_due(self, process: Process) -> bool:
        """Is it to be looked at, as one that is none of them is, too?"""
        known = self._known.get(process.identity)
        return known is None or self._clock() >= known.due or process.exe != known.exe

    def __contains__(self, process: Process) -> bool:
        return process.identity in self._known

    def keep(self, alive: Iterable[Process]) -> None:
        """Forget the others."""
        left = {process.identity for process in alive}
        for identity in self._known.keys() - left:
            del self._known[identity]
