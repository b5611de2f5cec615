"""Every call of processes that have the agent, as it happens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rbtrace_py.agent.arming import Armed, Selector, What
from rbtrace_py.agent.place import connect
from rbtrace_py.agent.protocol import BrokenAgent, Map
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.agent.starting import HOLD_SECONDS
from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.aggregate.switches import Switch
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.cgroup_limits import memory_room
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.readable import readable
from rbtrace_py.model.calls import CALL_RECORD_SIZE
from rbtrace_py.session.methods.agent_session import AgentOptions, AgentSession
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
class CallsOptions(AgentOptions):
    """Calls to see.

    slow_ns: only calls that take at least so long; cpu: of the thread's CPU time
    confirm: asked before something irreversible is done
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


class TracedCalls(AgentSession[TracedProcess[Told]]):
    """A session: ``start``, ``events`` until it is over, ``drain``."""

    def __init__(self, targets: Targets, options: CallsOptions) -> None:
        super().__init__(targets, options, max(options.seconds, HOLD_SECONDS))
        self.options = options
        self._names = ThreadNames()
        self._ended: list[CallsEnd] = []
        self._natives: set[bool | None] = set()
        self._confirmation = Confirmation(options.confirm)
        self._switches: ContextSwitches | None = None

    @property
    def hint(self) -> str:
        """Return what a user may have overlooked whose selection found no call."""
        slow = "" if self.options.slow_ns is None else " for that long"
        c_calls = "" if self.options.c_calls else c_calls_hint(self._natives)
        return f"no selected method was called{slow}{c_calls}"

    def start(self, stop: Callable[[], bool] = lambda: False) -> None:
        if self.options.switches:
            self._watch_switches()
        super().start(stop)

    @property
    def thread_names(self) -> Mapping[Thread, str]:
        """Return threads' names in all processes; "" for none. More may come."""
        return self._names.known

    def ask_threads(self) -> None:
        """Have the names of those known that came since; at most now and then."""
        self._names.learn_again(
            (process.pid, each.armed) for process, each in self._live.items()
        )

    def events(self, seconds: float) -> Iterator[Told]:
        """Yield what has come; if there is nothing more, wait at most ``seconds``."""
        is_behind = False
        for process, traced in list(self._live.items()):
            try:
                yield from traced.step()
            except BrokenAgent as error:
                yield from self._give_up(process, error)
            else:
                is_behind |= traced.is_behind
        if not is_behind:
            self._wait(min(seconds, _POLL_SECONDS))
            for process, traced in list(self._live.items()):
                if traced.armed.ended is not None:
                    yield from self._end(process)

    def switches(self) -> list[Switch]:
        """Return the scheduler's switches of threads since the last call."""
        return [] if self._switches is None else self._switches.take()

    def stop(self) -> None:
        """Take the hooks out; what had happened by then is still to be read."""
        for traced in self._live.values():
            try:
                traced.stop()
            except BrokenAgent as error:
                traced.armed.ended = traced.armed.ended or error

    def drain(self) -> Generator[Told, None, None]:
        """Take the hooks out; what had happened by then, and what was still open."""
        for process in list(self._live):
            yield from self._end(process)
        self._note_untraced()

    def waiting(self) -> int:
        """Events that have come and were not told yet."""
        return sum(traced.waiting() for traced in self._live.values())

    def drop(self, is_lost: bool) -> None:
        """Do as ``drain`` does, but drop what was not reported yet.

        is_lost: it counts as such
        """
        for process, traced in list(self._live.items()):
            traced.drop(is_lost)
            self._let_go(process)
        self._note_untraced()

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
        for traced in self._live.values():
            traced.armed.close()
        self._live.clear()
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
        others = len(self.targets.alive()) - self._given_up
        return min(room // _SHARE // max(others, 1), MOST_MEMORY)

    def _before_all(self, hello: Map, why_all: str = "") -> None:
        """Ask about what cannot be undone, before it is done; raises NotConfirmed."""
        if self.options.methods or self.options.c_calls:
            # A program that we start is held before it defines its methods.
            why_all = "" if self.targets.command else why_all
            texts = what_stays(hello, self.options.c_calls, why_all)
            self._confirmation.ask(texts)

    def _wait(self, seconds: float) -> None:
        waiting = [traced.armed for traced in self._live.values()]
        for armed in readable(waiting, seconds):
            armed.listen()

    def _end(self, process: Process) -> Iterator[Told]:
        traced = self._live[process]
        try:
            yield from traced.finish()
        except BrokenAgent as error:
            yield from traced.give_up(error)
        finally:
            self._let_go(process)

    def _give_up(self, process: Process, error: BrokenAgent) -> Iterator[Told]:
        """End a process whose agent is broken; tracing of the others continues."""
        try:
            yield from self._live[process].give_up(error)
        finally:
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
    """Every call, one by one."""

    def trace(self, pid: int, armed: Armed) -> ToldProcess:
        return ToldProcess(pid, armed, self.options.cpu)
