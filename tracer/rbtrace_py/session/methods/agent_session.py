"""The base of sessions that trace processes through their agents.

It chooses the processes, waits for their agents, and follows forks, execs, and exits.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rbtrace_py.agent.arming import HookMismatch
from rbtrace_py.agent.client import AnotherProgram
from rbtrace_py.agent.place import ENDED_BEFORE, HOW_TO_LOAD, NoAgent
from rbtrace_py.agent.starting import HOLD_SECONDS, begun_before
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.closing import Starting
from rbtrace_py.linux.process import Process
from rbtrace_py.session.targets.confirmation import NotConfirmed
from rbtrace_py.session.targets.notes import Notes, skipped
from rbtrace_py.session.targets.targets import Targets

CHILD_SECONDS = 5.0
"""Seconds for which a child without an agent is retried after its start or exec."""
_RETRY_SECONDS = 0.02
_MOST_REASONS = 50
_NOT_HUNG_UP = NoSuchTarget, HookMismatch
"""Ends that are normal, or that are raised as an error of their own."""

Traced = TypeVar("Traced")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of every session that needs agents.

    Attributes:
        wait: Wait for agents that are not loaded yet.
        wait_seconds: Seconds to wait for them; None means no limit.
    """

    wait: bool = False
    wait_seconds: float | None = None


@dataclass(slots=True)
class _Untraced:
    """A process without tracing, usually a child.

    Attributes:
        process: The process.
        program: Identity of its program, which an exec changes.
        since: Time at which this program was first seen, in seconds.
        is_late: True if it has run code that was not traced.
        is_given_up: True if it is not retried while it runs this program.
    """

    process: Process
    program: bytes
    since: float
    is_late: bool = True
    is_given_up: bool = False

    def has_executed(self, now: float) -> bool:
        """Return whether it runs another program, which may load an agent."""
        program = self.process.program
        if not program or program == self.program:
            return False
        self.program, self.since, self.is_given_up = program, now, False
        return True


class AgentSession(Starting, Generic[Traced]):
    """A session that traces processes through their agents.

    A subclass implements ``_join``, which starts tracing one process and passes the
    result to ``_add``. It calls ``_release`` for each process that it stops tracing.

    Args:
        targets: The processes. A COMMAND among them starts with an agent.
        options: Options of the wait for agents.
        hold_seconds: Seconds for which a COMMAND waits for tracing at most.
        clock: Monotonic clock, in seconds.

    Attributes:
        notes: Notes for the user, one per line; more may follow until the end.
        on_wait: Called while ``start`` waits for agents, with the seconds so far.
        stop: Called between attempts of ``start``; if it returns True, nothing more is
            traced.
        late: Number of children whose first events are missing.
        hung_up: Number of processes that outlived their agent's connection.
    """

    def __init__(
        self,
        targets: Targets,
        options: AgentOptions,
        hold_seconds: float = HOLD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.targets = targets
        self.notes = Notes()
        self.on_wait: Callable[[float], None] | None = None
        self.stop: Callable[[], bool] = lambda: False
        self.late = self.hung_up = 0
        self._wait_options = options
        self._clock = clock
        self._live: dict[Process, Traced] = {}
        self._untraced: dict[int, _Untraced] = {}
        self._without: dict[Process, RbtraceError] = {}
        self._executed: set[Process] = set()
        self._reasons: dict[int, str] = {}
        self._exited = 0
        self._last_end = 0.0
        self._not_followed: set[int] = set()
        targets.start_with_agent(hold_seconds)

    @abstractmethod
    def _join(self, process: Process) -> None:
        """Start tracing a process; raise NoAgent or another RbtraceError on failure."""

    def _start(self) -> None:
        self.start()

    def start(self) -> None:
        """Start tracing; first wait for agents if the options ask for it.

        Raises:
            NoAgent: A chosen process has no agent, and no child is traced instead.
            NoSuchTarget: The processes have exited.
            RbtraceError: Whatever ``_join`` raises for a chosen process, and
                NotConfirmed for any process.
        """
        began = time.monotonic()
        while not self.stop():
            waited = time.monotonic() - began
            # List children first: a later list would lack a COMMAND that exits at once.
            children = filter(self.targets.has_joined, self.targets.alive())
            if self._join_chosen(waited):
                self._join_others(children)
                break
            if self.on_wait is not None:
                self.on_wait(waited)
            time.sleep(_RETRY_SECONDS)
            self.targets.refresh()
        self._note_untraced()

    def refresh(self) -> None:
        """Trace new children, and retry processes that had no agent."""
        self._forget_exited()
        for child in self.targets.refresh():
            self._leave_out(child)
        for each in list(self._untraced.values()):
            if each.has_executed(self._clock()):
                self._reasons.pop(each.process.pid, None)
            if not each.is_given_up:
                self._retry(each)

    @property
    def is_over(self) -> bool:
        """Return whether all processes have exited, or their agents have ended."""
        if self._live or self._may_join():
            return False
        return self.targets.ours_has_ended

    @property
    def pids(self) -> list[int]:
        """The processes that are traced now."""
        return [process.pid for process in self._live]

    def unseen(self, shown: int) -> dict[str, int]:
        """Count the processes that are not traced, or not from their start.

        Args:
            shown: Number of events. If it is 0, children that are not followed are
                counted as well, because the events may be theirs.

        Returns:
            Counters by the names in docs/formats/latency.md.
        """
        found = {
            "without_agent": self._exited + len(self._untraced),
            "late_processes": self.late,
        }
        if not shown and self._not_followed:
            found["not_followed"] = len(self._not_followed)
        return found

    def _add(self, process: Process, traced: Traced, held: bool) -> None:
        """Add a process; ``held``: it waited for tracing before it ran its code."""
        self._live[process] = traced
        is_new = self.targets.is_ours(process) or process in self._executed
        if is_new and not held:
            self.notes.add(begun_before(process.pid))

    def _release(self, process: Process, ended: RbtraceError | None) -> bool:
        """Stop tracing a process; return whether it executed a program to trace next.

        ``ended``: why its agent ended; None if we ended it.
        """
        del self._live[process]
        self._last_end = self._clock()
        if isinstance(ended, AnotherProgram) and self.targets.follows(process):
            self._executed.add(process)
            # It is retried while it lives, and is not counted as late.
            self._leave_out(process).is_late = False
            return True
        self.hung_up += not (ended is None or isinstance(ended, _NOT_HUNG_UP))
        return False

    def _note_untraced(self) -> None:
        """Note which processes are not traced, and find children not followed."""
        self._not_followed |= self.targets.untracked_children()
        self.notes.add(*(skipped(pid, why) for pid, why in self._reasons.items()))

    @property
    def _given_up(self) -> int:
        """Number of living processes that are not retried."""
        return sum(each.is_given_up for each in self._untraced.values())

    def _may_join(self) -> bool:
        """Return whether to wait for a process that may load its agent soon.

        The wait is bounded: processes without an agent may have new children forever.
        """
        is_trying = self._given_up < len(self._untraced)
        return is_trying and self._clock() - self._last_end < CHILD_SECONDS

    def _join_chosen(self, waited: float) -> bool:
        """Trace the chosen processes; return False to wait for more agents."""
        limit = self._wait_options.wait_seconds
        may_wait = self._wait_options.wait or self.targets.command is not None
        waits = may_wait and (limit is None or waited < limit)
        self._without.clear()
        for process in self.targets.chosen():
            if process in self._live:
                continue
            try:
                self._join(process)
            except NoAgent as error:
                if not (waits or self.targets.follow):
                    raise
                # Children may have agents: workers whose parent does not load one.
                self._without[process] = error
            except NoSuchTarget:
                # Its exit only matters if all other processes have exited, too.
                if not may_wait:
                    raise
        return not (waits and self._without)

    def _join_others(self, children: Iterable[Process]) -> None:
        """Trace children that exist already; keep the processes without an agent."""
        for process in (*self._without, *children):
            self._try(self._leave_out(process))
        if not self._live:
            ended = NoSuchTarget(ENDED_BEFORE, HOW_TO_LOAD)
            raise next(iter(self._without.values()), ended)

    def _leave_out(self, process: Process) -> _Untraced:
        left = _Untraced(process, process.program, self._clock())
        self._untraced[process.pid] = left
        return left

    def _forget_exited(self) -> None:
        alive = {process.pid: process for process in self.targets.alive()}
        self._executed.intersection_update(alive.values())
        for pid, each in list(self._untraced.items()):
            if alive.get(pid) is not each.process:
                del self._untraced[pid]
                self._exited += 1

    def _retry(self, left: _Untraced) -> None:
        try:
            self.late += self._try(left) and left.is_late
        except NotConfirmed as error:
            left.is_given_up = True
            self._explain(left, error)
        else:
            # This attempt was the last one if CHILD_SECONDS have passed.
            is_old = self._clock() - left.since >= CHILD_SECONDS
            left.is_given_up = is_old and left.is_late

    def _try(self, left: _Untraced) -> bool:
        """Return whether the process is traced now; raise NotConfirmed."""
        try:
            self._join(left.process)
        except NotConfirmed:
            raise
        except RbtraceError as error:
            self._explain(left, error)
            return False
        del self._untraced[left.process.pid]
        self._reasons.pop(left.process.pid, None)
        return True

    def _explain(self, left: _Untraced, error: RbtraceError) -> None:
        pid = left.process.pid
        # A missing agent explains more than a later exit.
        is_new = isinstance(error, NoAgent) or pid not in self._reasons
        if is_new and (pid in self._reasons or len(self._reasons) < _MOST_REASONS):
            self._reasons[pid] = str(error)
