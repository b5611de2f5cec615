"""Every call of processes that have the agent, as it happens."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic

from rbtrace_py.agent.arming import Armed, Selector, What
from rbtrace_py.agent.client import AnotherProgram
from rbtrace_py.agent.place import ENDED_BEFORE, HOW_TO_LOAD, NoAgent, connect
from rbtrace_py.agent.protocol import BrokenAgent, Map
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.agent.starting import HOLD_SECONDS, begun_before
from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.aggregate.switches import Switch
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.cgroup_limits import memory_room
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.readable import readable
from rbtrace_py.model.calls import CALL_RECORD_SIZE
from rbtrace_py.session.methods.hook_notes import c_calls_hint, hook_notes
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from rbtrace_py.session.methods.thread_names import ThreadNames
from rbtrace_py.session.methods.traced_process import (
    MAX_METHODS,
    BrokenRecords,
    CallsEnd,
    Told,
    ToldProcess,
    TracedProcess,
)
from rbtrace_py.session.targets.confirmation import (
    Confirm,
    Confirmation,
    accept_none,
    what_stays,
)
from rbtrace_py.session.targets.joining import Joining
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.context_switches import ContextSwitches

RING_RECORDS = 262_144
LEAST_RECORDS = 256
"""That the agent takes."""
LEAST_STREAMS, MOST_STREAMS = 16, 4096
MOST_MEMORY = 1 << 30
"""Bytes of all rings of a process."""
_SHARE = 8
"""Rings get one part of so many of what is free; the target pays for them."""
__all__ = ["Calls", "CallsEnd", "CallsOptions", "TracedCalls", "TracedProcess"]

_POLL_SECONDS = 0.02
"""How soon rings in which there was nothing are read again."""


@dataclass(frozen=True, slots=True)
class CallsOptions:
    """Calls to see.

    slow_ns: only calls that take at least so long; cpu: of the thread's CPU time
    confirm: asked before something irreversible is done
    wait: for an agent that is not there yet, and wait_seconds: for how long
    seconds: that arming may take
    ring_records: room of each stack for events, a power of two
    switches: when threads were on CPUs, too, where that can be known
    """

    select: Sequence[Selector] = ()
    methods: bool = True
    c_calls: bool = False
    gc: bool = False
    slow_ns: int | None = None
    cpu: bool = False
    confirm: Confirm = accept_none
    wait: bool = False
    wait_seconds: float | None = None
    seconds: float = 10.0
    ring_records: int = RING_RECORDS
    switches: bool = False

    def what(self, offsets: dict[str, int] | None, most: int = MOST_MEMORY) -> What:
        """Return how to arm the hook; offsets: of the process's Ruby, if known.

        most: bytes of the process's that all rings may take
        """
        streams, records = ring_sizes(self.ring_records, most)
        return What(
            mode=HookMode.RING if self.slow_ns is None else HookMode.SLOW,
            methods=self.methods,
            c_calls=self.c_calls,
            gc=self.gc,
            threshold_ns=self.slow_ns or 0,
            cpu=self.cpu,
            select=self.select,
            max_methods=MAX_METHODS,
            max_streams=streams,
            ring_records=records,
            offsets=offsets,
        )


def ring_sizes(records: int, most: int) -> tuple[int, int]:
    """For how many stacks at a time there are rings, and of how many records each.

    records: that are asked for; they are fewer if ``most`` bytes would not do for
        some stacks
    """
    size = records * CALL_RECORD_SIZE
    while size * LEAST_STREAMS > most and records > LEAST_RECORDS:
        records //= 2
        size //= 2
    return min(max(most // size, LEAST_STREAMS), MOST_STREAMS), records


class TracedCalls(Closing, ABC, Generic[Told]):
    """A session: ``start``, ``events`` until it is over, ``drain``.

    notes: what is worth saying once it has started, a line each; more come until it
        has finished
    on_wait: if set before, gets the seconds so far while ``start`` waits for agents
    """

    def __init__(self, targets: Targets, options: CallsOptions) -> None:
        self.targets = targets
        self.options = options
        self.notes = Notes()
        self.on_wait: Callable[[float], None] | None = None
        self._traced: dict[int, TracedProcess[Told]] = {}
        self._joining = Joining(targets, self._take_in)
        self._names = ThreadNames()
        self._ended: list[CallsEnd] = []
        self._natives: set[bool | None] = set()
        self._untracked: set[int] = set()
        self._children: set[int] = set()
        self._confirmation = Confirmation(options.confirm)
        self._last_end = 0.0
        targets.start_with_agent(max(options.seconds, HOLD_SECONDS))
        self._switches: ContextSwitches | None = None
        self._without: dict[Process, RbtraceError] = {}

    @property
    def hint(self) -> str:
        """Return what a user may have overlooked whose selection found no call."""
        slow = "" if self.options.slow_ns is None else " for that long"
        c_calls = "" if self.options.c_calls else c_calls_hint(self._natives)
        return f"no selected method was called{slow}{c_calls}"

    def start(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Have the hooks registered; waits for agents where that was asked for.

        Raises NoAgent and whatever Armed does; NotConfirmed.
        """
        if self.options.switches:
            self._watch_switches()
        joined = filter(self.targets.has_joined, self.targets.alive())
        children, waiting = list(joined), self.targets.chosen()
        began = time.monotonic()
        while waiting and not stop():
            waited = time.monotonic() - began
            waiting = [one for one in waiting if not self._has_begun(one, waited)]
            if waiting:
                if self.on_wait is not None:
                    self.on_wait(waited)
                time.sleep(_POLL_SECONDS)
        if not stop():
            self._joining.begin([*self._without, *children])
            self.notes.add(*self._joining.notes())
            if not self._traced:
                raise next(
                    iter(self._without.values()),
                    NoSuchTarget(ENDED_BEFORE, HOW_TO_LOAD),
                )
        self._untracked = self.targets.untracked_children()

    @property
    def thread_names(self) -> Mapping[Thread, str]:
        """Return threads' names in all processes; "" for none. More may come."""
        return self._names.known

    def ask_threads(self) -> None:
        """Have the names of those known that came since; at most now and then."""
        self._names.learn_again((p, each.armed) for p, each in self._traced.items())

    @property
    def pids(self) -> list[int]:
        return list(self._traced)

    @property
    def is_over(self) -> bool:
        """Has every process ended, or let go of us?"""
        if self._traced or self._joining.may_join(self._last_end):
            return False
        return self.targets.ours_has_ended

    def events(self, seconds: float) -> Iterator[Told]:
        """Yield what has come; if there is nothing more, wait at most ``seconds``."""
        is_behind = False
        for pid, traced in list(self._traced.items()):
            try:
                yield from traced.step()
            except BrokenAgent as error:
                yield from self._give_up(pid, error)
            else:
                is_behind |= traced.is_behind
        if not is_behind:
            self._wait(min(seconds, _POLL_SECONDS))
            for pid, traced in list(self._traced.items()):
                if traced.armed.ended is not None:
                    yield from self._end(pid)

    def refresh(self) -> None:
        """Take in children of the targets, and what our program executes, once they
        have an agent of their own."""
        self._joining.refresh()

    def switches(self) -> list[Switch]:
        """Return the scheduler's switches of threads since the last call."""
        return [] if self._switches is None else self._switches.take()

    def stop(self) -> None:
        """Take the hooks out; what had happened by then is still to be read."""
        for traced in self._traced.values():
            try:
                traced.stop()
            except BrokenAgent as error:
                traced.armed.ended = traced.armed.ended or error

    def drain(self) -> Generator[Told, None, None]:
        """Take the hooks out; what had happened by then, and what was still open."""
        for pid in list(self._traced):
            yield from self._end(pid)
        self._note_untracked_children()

    def waiting(self) -> int:
        """Events that have come and were not told yet."""
        return sum(traced.waiting() for traced in self._traced.values())

    def drop(self, is_lost: bool) -> None:
        """Do as ``drain`` does, but drop what was not reported yet.

        is_lost: it counts as such
        """
        for pid, traced in list(self._traced.items()):
            traced.drop(is_lost)
            self._let_go(pid)
        self._note_untracked_children()

    def _note_untracked_children(self) -> None:
        """Whom we did not see, at the end."""
        self._untracked |= self.targets.untracked_children()
        self.notes.add(*self._joining.notes())

    def unseen(self, shown: int) -> dict[str, int]:
        """Processes whose calls are not all seen, by docs/formats's names.

        shown: calls that were seen; if there were none, it may be the children's fault
        """
        joining = self._joining
        found = {"without_agent": joining.without, "late_processes": joining.late}
        if not shown and self._untracked:
            found["not_followed"] = len(self._untracked)
        return found

    def ends(self) -> list[CallsEnd]:
        """Return what to say of each process that is over."""
        return list(self._ended)

    def counters(self) -> dict[str, int]:
        """Return the counters of all processes' ``ends``."""
        found: dict[str, int] = {}
        for end in self.ends():
            for name, number in end.counters.items():
                found[name] = found.get(name, 0) + number
        return found

    def close(self) -> None:
        for traced in self._traced.values():
            traced.armed.close()
        self._traced.clear()
        if self._switches is not None:
            self._switches.close()
            self._switches = None

    def _watch_switches(self) -> None:
        """Before hooks are registered: it takes a tenth of a second."""
        # Who records nothing needs no BPF.
        from rbtrace_py.session.stacks.context_switches import ContextSwitches

        try:
            self._switches = ContextSwitches()
        except RbtraceError as error:
            hint = f". {error.hint.splitlines()[0]}" if error.hint else ""
            text = f"CPU times are not recorded: {error}{hint}"
            self.notes.append(text)

    def _has_begun(self, process: Process, waited: float) -> bool:
        """One that was chosen; raises unless it is waited for."""
        limit = self.options.wait_seconds
        waits = self.options.wait or self.targets.command is not None
        try:
            self._take_in(process)
        except NoAgent as error:
            if self.targets.follow and not waits:
                # Its children may have agents, as workers whose parent loads little.
                self._without[process] = error
                return True
            if not waits:
                raise
            if not process.alive() or (limit is not None and waited >= limit):
                raise NoSuchTarget(str(error), HOW_TO_LOAD) from error
            return False
        except NoSuchTarget:
            # It has ended; that is said if there is no other.
            if not waits:
                raise
        return True

    def _take_in(self, process: Process) -> None:
        armed = self._arm(process)
        has_executed = any(end.pid == process.pid for end in self._ended)
        if (self.targets.is_ours(process) or has_executed) and not armed.held:
            self.notes.add(begun_before(process.pid))
        if self.targets.has_joined(process):
            self._children.add(process.pid)
        self._traced[process.pid] = self.trace(process.pid, armed)
        self._names.learn(process.pid, armed)
        records = armed.shared.header.ring_records
        if records < self.options.ring_records:
            self.notes.append(
                f"process {process.pid} is short of memory: its threads get"
                f" buffers of {records:,} events, not"
                f" {self.options.ring_records:,}"
            )

    def _reported_end(self, end: CallsEnd) -> CallsEnd:
        """Return the end to report: of a child, a problem becomes a note."""
        if end.problem is None or end.pid not in self._children:
            return end
        problem = end.problem
        why = problem.why if isinstance(problem, BrokenRecords) else problem
        notes = (*end.notes, f"tracing of it stops here: {why}")
        return replace(end, notes=notes, problem=None)

    def _arm(self, process: Process) -> Armed:
        """Its threads are watched before its first call can be seen."""
        # Of a program that is to become Ruby nothing is known before.
        connect(process).close()
        offsets = hook_offsets(process)
        what = self.options.what(offsets, self._memory_for(process))
        if self._switches is None:
            return self._armed(process, what)
        switches = self._switches
        try:
            armed = self._armed(process, what, lambda _: switches.watch(process))
        except BaseException:
            switches.forget(process.pid)
            raise
        if armed.has_our_clock:
            # Both tell the same time in the same way, to the nanosecond.
            armed.wall_offset = switches.wall_offset
        if armed.shares_natives:
            self.notes.append(
                f"threads of process {process.pid} share native threads: CPU times"
                " belong to those"
            )
        return armed

    def _armed(
        self,
        process: Process,
        what: What,
        before: Callable[[Map], None] = lambda hello: None,
    ) -> Armed:
        seconds = self.options.seconds
        armed = Armed(process, what, before, seconds, self._before_all)
        self.notes.add(*hook_notes(process.pid, armed, what.c_calls))
        self._natives.add(armed.native)
        return armed

    @abstractmethod
    def trace(self, pid: int, armed: Armed) -> TracedProcess[Told]:
        """Return what tells of a process's records."""

    def _memory_for(self, process: Process) -> int:
        """Bytes that its rings may take; others of ours may share its limit."""
        room = memory_room(process)
        if room is None:
            return MOST_MEMORY
        others = len(self.targets.alive()) - self._joining.given_up
        return min(room // _SHARE // max(others, 1), MOST_MEMORY)

    def _before_all(self, hello: Map, why_all: str = "") -> None:
        """Ask about what cannot be undone, before it is done; raises NotConfirmed."""
        if self.options.methods or self.options.c_calls:
            # A program that we start is held before it defines its methods.
            why_all = "" if self.targets.command else why_all
            texts = what_stays(hello, self.options.c_calls, why_all)
            self._confirmation.ask(texts)

    def _wait(self, seconds: float) -> None:
        waiting = [traced.armed for traced in self._traced.values()]
        for armed in readable(waiting, seconds):
            armed.listen()

    def _end(self, pid: int) -> Iterator[Told]:
        traced = self._traced[pid]
        try:
            yield from traced.finish()
        except BrokenAgent as error:
            yield from traced.give_up(error)
        finally:
            self._let_go(pid)

    def _give_up(self, pid: int, error: BrokenAgent) -> Iterator[Told]:
        """One process's agent that is broken does not end the others."""
        try:
            yield from self._traced[pid].give_up(error)
        finally:
            self._let_go(pid)

    def _let_go(self, pid: int) -> None:
        traced = self._traced.pop(pid)
        if self._switches is not None:
            self._switches.forget(pid)
        end = traced.end()
        process = self.targets.processes.get(pid)
        is_other = isinstance(end.problem, AnotherProgram)
        if is_other and process and self.targets.follows(process):
            end = replace(end, problem=None)
            self._joining.ask_again(process)
        self._ended.append(self._reported_end(end))
        self._last_end = self._joining.clock()
        traced.armed.close()


class Calls(TracedCalls[ReportedCall]):
    """Every call, one by one."""

    def trace(self, pid: int, armed: Armed) -> ToldProcess:
        return ToldProcess(pid, armed, self.options.cpu)
