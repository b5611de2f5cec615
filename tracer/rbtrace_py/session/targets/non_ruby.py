"""Targets that do not run a readable Ruby yet."""

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
    """The program of a process, and the wait until its next check."""

    exe: str | None
    wait: float
    due: float


class NonRubyProcesses:
    """The times of the next checks of non-Ruby processes.

    A process may become a Ruby process: a shell may execute Ruby, and a Ruby that has
    just started has not mapped its library yet. Each process is checked again when it
    executes another program, and otherwise at increasing intervals.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[int, int], _NonRubyProcess] = {}

    def add(self, process: Process, may_become: bool = True) -> None:
        """Add a checked process; ``may_become``: check again without an exec, too."""
        known, exe = self._known.get(process.identity), process.exe
        wait = _FIRST_SECONDS
        if known is not None and known.exe == exe:
            wait = min(2 * known.wait, _LONGEST_SECONDS)
        due = self._clock() + wait if may_become else inf
        self._known[process.identity] = _NonRubyProcess(exe, wait, due)

    def is_due(self, process: Process) -> bool:
        """Return whether to check a process; True for unknown ones."""
        known = self._known.get(process.identity)
        return known is None or self._clock() >= known.due or process.exe != known.exe

    def __contains__(self, process: Process) -> bool:
        return process.identity in self._known

    def keep(self, alive: Iterable[Process]) -> None:
        """Drop all processes except ``alive``."""
        left = {process.identity for process in alive}
        for identity in self._known.keys() - left:
            del self._known[identity]
