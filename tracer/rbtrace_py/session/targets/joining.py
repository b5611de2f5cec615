"""Processes that are asked for their agent again: they may have one soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rbtrace_py.agent.place import NoAgent
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.session.targets.confirmation import NotConfirmed
from rbtrace_py.session.targets.notes import skipped
from rbtrace_py.session.targets.targets import Targets

SECONDS = 5.0
"""How long a child is tried again, anew with each program that it runs."""
_MOST_REASONS = 50


@dataclass(slots=True)
class _Left:
    """One that is left out, a child as a rule.

    program: what tells what it runs from the next; since: when that was first seen
    is_late: it has begun without us
    is_given_up: it is not tried again while it runs that
    """

    process: Process
    program: bytes
    since: float
    is_late: bool = True
    is_given_up: bool = False

    def has_executed(self, now: float) -> bool:
        """Does it run another program? One that is Ruby may have an agent."""
        program = self.process.program
        if not program or program == self.program:
            return False
        self.program, self.since, self.is_given_up = program, now, False
        return True


class Joining:
    """Those of ``targets`` that could not be asked yet.

    join: asks one; may raise RbtraceError
    clock: monotonic, in seconds
    late: how many joined after they had begun
    """

    def __init__(
        self,
        targets: Targets,
        join: Callable[[Process], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.late = 0
        self._targets = targets
        self._join = join
        self.clock = clock
        self._left: dict[int, _Left] = {}
        self._reasons: dict[int, str] = {}
        self._ended = 0

    @property
    def without(self) -> int:
        """The number that were never asked, with those that have ended since."""
        return self._ended + len(self._left)

    @property
    def given_up(self) -> int:
        """The number that live on and are not tried any more."""
        return sum(left.is_given_up for left in self._left.values())

    def may_join(self, since: float) -> bool:
        """Is one worth waiting for, where nobody has been asked ``since`` then?

        Not for ever: who has no agent may have new children again and again.
        """
        is_trying = self.given_up < len(self._left)
        return is_trying and self.clock() - since < SECONDS

    def notes(self) -> list[str]:
        """Return a line on each process that is left out: why."""
        found = self._reasons.items()
        return [skipped(pid, why) for pid, why in found]

    def ask_again(self, process: Process) -> None:
        """One that runs another program than we asked; for as long as it lives."""
        self._leave(process).is_late = False

    def begin(self, children: Iterable[Process]) -> None:
        """Ask those that are there from the start; raises NotConfirmed."""
        for child in children:
            self._ask(self._leave(child))

    def refresh(self) -> None:
        """Find children that are new; try those that are left out and young."""
        self._forget_ended()
        for child in self._targets.refresh():
            self._leave(child)
        for left in list(self._left.values()):
            if left.has_executed(self.clock()):
                self._reasons.pop(left.process.pid, None)
            if not left.is_given_up:
                self._try(left)

    def _leave(self, child: Process) -> _Left:
        left = _Left(child, child.program, self.clock())
        self._left[child.pid] = left
        return left

    def _forget_ended(self) -> None:
        alive = {process.pid: process for process in self._targets.alive()}
        for pid, left in list(self._left.items()):
            if alive.get(pid) is not left.process:
                del self._left[pid]
                self._ended += 1

    def _try(self, left: _Left) -> None:
        try:
            self.late += self._ask(left) and left.is_late
        except NotConfirmed as error:
            left.is_given_up = True
            self._explain(left, error)
        else:
            # After it was tried, however long ago the last try was.
            is_old = self.clock() - left.since >= SECONDS
            left.is_given_up = is_old and left.is_late

    def _ask(self, left: _Left) -> bool:
        """Return whether the process has joined; raises NotConfirmed."""
        try:
            self._join(left.process)
        except NotConfirmed:
            raise
        except RbtraceError as error:
            self._explain(left, error)
            return False
        del self._left[left.process.pid]
        self._reasons.pop(left.process.pid, None)
        return True

    def _explain(self, left: _Left, error: RbtraceError) -> None:
        pid = left.process.pid
        # Why it had no agent before says more than that it has ended since.
        is_new = isinstance(error, NoAgent) or pid not in self._reasons
        if is_new and (pid in self._reasons or len(self._reasons) < _MOST_REASONS):
            self._reasons[pid] = str(error)
