"""Single calls of processes with the agent, as they happen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rbtrace_py.agent.arming import Armed, ArmRequest
from rbtrace_py.agent.protocol import BrokenAgent, Map
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.agent.starting import HOLD_SECONDS
from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.cgroup_limits import memory_room
from rbtrace_py.linux.process import Process
from rbtrace_py.model.calls import CALL_RECORD_SIZE
from rbtrace_py.model.switches import Switch
from rbtrace_py.session.event_session import EventSession
from rbtrace_py.session.methods.hook_notes import c_calls_hint, hook_notes
from rbtrace_py.session.methods.hook_session import HookOptions, HookSession
from rbtrace_py.session.methods.thread_names import ThreadNames
from rbtrace_py.session.methods.traced_process import (
    MAX_METHODS,
    BrokenRecords,
    CallsEnd,
    Told,
    ToldProcess,
    TracedProcess,
)
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from rbtrace_py.bpf.context_switches import ContextSwitches

RING_RECORDS = 262_144
LEAST_RECORDS = 256
"""The agent's minimum."""
LEAST_STREAMS, MOST_STREAMS = 16, 4096
MOST_MEMORY = 1 << 30
"""Maximum bytes of all rings of a process."""
_SHARE = 8
"""The rings get 1/_SHARE of the memory that the target's limit leaves."""
__all__ = ["Calls", "CallsEnd", "CallsOptions", "TracedCalls", "TracedProcess"]

_POLL_SECONDS = 0.02
"""Seconds until empty rings are read again."""


@dataclass(frozen=True, slots=True)
class CallsOptions(HookOptions):
    """Calls to trace.

    Attributes:
        gc: Also trace garbage collections.
        slow_ns: Only trace calls that take at least this many nanoseconds.
        cpu: ``slow_ns`` is CPU time of the thread.
        seconds: Time limit for arming.
        ring_records: Size of each stack's buffer in events, a power of two.
        switches: Also record when threads were on CPUs, if possible.
    """

    gc: bool = False
    slow_ns: int | None = None
    cpu: bool = False
    seconds: float = 10.0
    ring_records: int = RING_RECORDS
    switches: bool = False

    def request(self, most: int = MOST_MEMORY) -> ArmRequest:
        """Return how to arm the hook; its rings take at most ``most`` bytes."""
        streams, records = ring_sizes(self.ring_records, most)
        return ArmRequest(
            mode=HookMode.RING if self.slow_ns is None else HookMode.SLOW,
            c_calls=self.c_calls,
            gc=self.gc,
            threshold_ns=self.slow_ns or 0,
            cpu=self.cpu,
            select=self.select,
            max_methods=MAX_METHODS,
            max_streams=streams,
            ring_records=records,
        )


def ring_sizes(records: int, most: int) -> tuple[int, int]:
    """Return the number of rings, one per stack, and the records of each.

    Args:
        records: Requested records per ring. They are halved until LEAST_STREAMS rings
            fit into ``most`` bytes.
        most: Maximum size of all rings, in bytes.
    """
    size = records * CALL_RECORD_SIZE
    while size * LEAST_STREAMS > most and records > LEAST_RECORDS:
        records //= 2
        size //= 2
    return min(max(most // size, LEAST_STREAMS), MOST_STREAMS), records


class TracedCalls(HookSession[TracedProcess[Told]], EventSession[Told]):
    """A session of calls."""

    def __init__(self, targets: Targets, options: CallsOptions) -> None:
        super().__init__(targets, options, max(options.seconds, HOLD_SECONDS))
        self.options = options
        self._names = ThreadNames()
        self._ended: list[CallsEnd] = []
        self._switches: ContextSwitches | None = None

    @property
    def hint(self) -> str:
        """Hint for a user whose selection found no call."""
        slow = "" if self.options.slow_ns is None else " for that long"
        c_calls = "" if self.options.c_calls else c_calls_hint(self._natives)
        return f"no selected method was called{slow}{c_calls}"

    def start(self) -> None:
        if self.options.switches:
            self._watch_switches()
        super().start()

    @property
    def thread_names(self) -> Mapping[Thread, str]:
        """The names of all threads so far; "" for a thread without a name."""
        return self._names.known

    def ask_threads(self) -> None:
        """Request the names of new threads, unless that was done just now."""
        self._names.learn_again(
            (process.pid, each.armed) for process, each in self._live.items()
        )

    def events(self, seconds: float) -> Iterator[Told]:
        """Yield new events; wait up to ``seconds`` after the last ones in the rings."""
        is_behind = False
        for process, traced in list(self._live.items()):
            try:
                yield from traced.step()
            except BrokenAgent as error:
                yield from self._end(process, error)
            else:
                is_behind |= traced.is_behind
        if not is_behind:
            self._listen(min(seconds, _POLL_SECONDS))
            for process, traced in list(self._live.items()):
                if traced.armed.ended is not None:
                    yield from self._end(process)

    def switches(self) -> list[Switch]:
        """Return the context switches since the last call."""
        return [] if self._switches is None else self._switches.take()

    def finish(self) -> None:
        """Disarm the hooks; earlier events can still be read."""
        for traced in self._live.values():
            try:
                traced.stop()
            except BrokenAgent as error:
                traced.armed.ended = traced.armed.ended or error

    def drain(self) -> Generator[Told, None, None]:
        """Disarm the hooks; yield earlier events, and calls that are still open.

        If the caller does not consume them all, ``drop`` drops the others.
        """
        for process in list(self._live):
            yield from self._end(process)
        self._note_untraced()

    def waiting(self) -> int:
        """Return the number of events that were not yielded yet."""
        return sum(traced.waiting() for traced in self._live.values())

    def drop(self, is_lost: bool) -> None:
        for process, traced in list(self._live.items()):
            traced.drop(is_lost)
            self._let_go(process)
        self._note_untraced()

    def ends(self) -> list[CallsEnd]:
        """Return the reports on processes that are no longer traced."""
        return list(self._ended)

    def counters(self) -> dict[str, int]:
        """Return the sums of the counters in ``ends``."""
        found: dict[str, int] = {}
        for end in self.ends():
            for name, number in end.counters.items():
                found[name] = found.get(name, 0) + number
        return found

    @property
    def failure(self) -> RbtraceError | None:
        problems = (end.problem for end in self._ended)
        return next((problem for problem in problems if problem is not None), None)

    def result_counters(self) -> dict[str, int]:
        return {**self.unseen(self.seen), **self.counters()}

    def close(self) -> None:
        for traced in self._live.values():
            traced.armed.close()
        self._live.clear()
        if self._switches is not None:
            self._switches.close()
            self._switches = None

    def _watch_switches(self) -> None:
        """Start before hooks are registered, because this takes a tenth of a second."""
        # Import late: only recordings need BPF.
        from rbtrace_py.bpf.context_switches import ContextSwitches

        try:
            self._switches = ContextSwitches()
        except RbtraceError as error:
            hint = f". {error.hint.splitlines()[0]}" if error.hint else ""
            text = f"CPU times are not recorded: {error}{hint}"
            self.notes.append(text)

    def _join(self, process: Process) -> None:
        armed = self._arm(process)
        self._add(process, self.trace(process.pid, armed), armed.held)
        self._names.learn(process.pid, armed)
        records = armed.shared.header.ring_records
        if records < self.options.ring_records:
            self.notes.append(
                f"process {process.pid} is short of memory: its threads get"
                f" buffers of {records:,} events, not"
                f" {self.options.ring_records:,}"
            )

    def _arm(self, process: Process) -> Armed:
        """Arm the hook; start recording context switches before its first call."""
        switches = self._switches

        def watch(hello: Map) -> None:
            if switches is not None:
                switches.watch(process)

        try:
            armed = self._arm_hook(process, watch, self.options.seconds)
        except BaseException:
            if switches is not None:
                switches.forget(process.pid)
            raise
        self.notes.add(*hook_notes(process.pid, armed, self.options.c_calls))
        if switches is not None and armed.has_our_clock:
            # Both clocks then agree to the nanosecond.
            armed.wall_offset = switches.wall_offset
        if switches is not None and armed.shares_natives:
            self.notes.append(
                f"threads of process {process.pid} share native threads: CPU times"
                " belong to those"
            )
        return armed

    @abstractmethod
    def trace(self, pid: int, armed: Armed) -> TracedProcess[Told]:
        """Return the reader of a process's records."""

    def _request(self, process: Process) -> ArmRequest:
        """Size the rings; traced processes may share one memory limit."""
        room = memory_room(process)
        if room is None:
            return self.options.request()
        others = len(self.targets.alive()) - self._given_up
        most = min(room // _SHARE // max(others, 1), MOST_MEMORY)
        return self.options.request(most)

    def _end(
        self, process: Process, error: BrokenAgent | None = None
    ) -> Iterator[Told]:
        """End a process, because of ``error`` if its agent is broken."""
        traced = self._live[process]
        try:
            yield from traced.give_up(error) if error else traced.finish()
        except BrokenAgent as broken:
            yield from traced.give_up(broken)
        self._let_go(process)

    def _let_go(self, process: Process) -> None:
        traced = self._live[process]
        if self._switches is not None:
            self._switches.forget(process.pid)
        end = traced.end()
        if self._release(process, end.problem):
            end = replace(end, problem=None)
        elif end.problem is not None and self.targets.has_joined(process):
            # The user did not choose the child, so its problem is only noted.
            problem = end.problem
            why = problem.why if isinstance(problem, BrokenRecords) else problem
            notes = (*end.notes, f"tracing of it stops here: {why}")
            end = replace(end, notes=notes, problem=None)
        self._ended.append(end)
        traced.armed.close()


class Calls(TracedCalls[ReportedCall]):
    """A session whose events are single calls."""

    def trace(self, pid: int, armed: Armed) -> ToldProcess:
        return ToldProcess(pid, armed, self.options.cpu)
