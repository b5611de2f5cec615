"""A process whose method hook is armed, and the events in its rings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from rbtrace_py.agent.arming import Armed
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.ring import Ring
from rbtrace_py.agent.shared import Condition
from rbtrace_py.aggregate.call_interpreter import CallInterpreter, HookedProcess
from rbtrace_py.aggregate.calls import ReportedCall
from rbtrace_py.aggregate.reportedcalls import ReportedCalls
from rbtrace_py.errors import NoSuchTarget, RbtraceError

MAX_METHODS = 65_536

_CONDITIONS = {
    Condition.METHODS_FULL: f"it called more than {MAX_METHODS:,} methods; the"
    " rest are in (no room)",
    Condition.STREAMS_FULL: "it had too many threads and fibers at once; calls of"
    " some idle ones were dropped (a smaller --buffer"
    " leaves space for more)",
    Condition.NO_INNER: "it uses Ractors: collections and new objects were not"
    " traced after the first Ractor, since hooks on them"
    " crash Ruby before 3.3",
}


class BrokenRecords(BrokenAgent):
    """The agent of one process wrote invalid records: ``why``."""

    def __init__(self, pid: int, why: BrokenAgent) -> None:
        super().__init__(f"process {pid}: {why}", why.hint)
        self.why = why


@dataclass(frozen=True, slots=True)
class CallsEnd:
    """The final report on a process.

    Attributes:
        pid: The process.
        counters: Counters by their names in docs/formats.
        stays: Lasting changes to the process, in words.
        notes: Problems, in words.
        problem: Why tracing ended early; None if we ended it or the process exited.
    """

    pid: int
    counters: dict[str, int]
    stays: tuple[str, ...]
    notes: tuple[str, ...]
    problem: RbtraceError | None


Told = TypeVar("Told")


class TracedProcess(ABC, Generic[Told]):
    """A process whose hook is armed. Its rings yield items of type ``Told``.

    Attributes:
        is_behind: More events can be read at once.
    """

    is_behind = False

    def __init__(self, pid: int, armed: Armed) -> None:
        self.pid = pid
        self.armed = armed
        self._ring = Ring(armed.shared)
        self._given_up = 0
        self._is_stopped = False

    @abstractmethod
    def step(self) -> Iterator[Told]:
        """Yield new events."""

    @abstractmethod
    def rest(self) -> Iterator[Told]:
        """Yield the last events. No more follow, and open calls stay open."""

    def stopped(self, until: int) -> None:
        """Handle disarming: skip events after ``until`` (ticks).

        Their names may be missing.
        """

    def learn(self) -> None:
        """Request new names, but not too often, while the hook is armed."""
        if not self._is_stopped:
            self.armed.keep_learning()

    def waiting(self) -> int:
        """Return the number of events that were not yielded yet."""
        return self._ring.waiting()

    def drop(self, is_lost: bool) -> None:
        """Disarm the hook, and drop the remaining events.

        Args:
            is_lost: Count them as lost.
        """
        self.stop()
        self._given_up += self.waiting() if is_lost else 0

    def stop(self) -> None:
        """Disarm the hook once; skip calls made meanwhile."""
        if not self._is_stopped:
            until = self._stop()
            if until is not None:
                self.stopped(until)

    def finish(self) -> Iterator[Told]:
        """Disarm the hook; yield earlier events."""
        self.stop()
        # A broken process might send events forever.
        left = self._ring.waiting()
        while left > 0:
            before = self._ring.count
            yield from self.step()
            if self._ring.count == before:
                break
            left -= self._ring.count - before
        yield from self.rest()

    def give_up(self, error: BrokenAgent) -> Iterator[Told]:
        """End tracing because of invalid records; yield earlier events."""
        self.armed.ended = BrokenRecords(self.pid, error)
        with suppress(BrokenAgent):
            yield from self.rest()

    def end(self) -> CallsEnd:
        try:
            return self._end()
        except BrokenAgent as error:
            problem = self.armed.ended or BrokenRecords(self.pid, error)
            return CallsEnd(self.pid, {}, self.armed.overhead, (), problem)

    def _end(self) -> CallsEnd:
        found = self.armed.counters()
        counters = {
            "running_at_attach": found.orphans,
            "abandoned": found.abandoned,
            "no_method": found.no_method,
            "lost": self._ring.dropped() + self._given_up,
            "no_stream": found.no_stream,
            "too_deep": found.too_deep,
            "no_values": found.no_values,
            "silent": int(Condition.SILENT in found.conditions),
            "left_out": int(Condition.LEFT_OUT in found.conditions),
            "targeted": int(self.armed.targets is not None),
            "other_ractors": int(Condition.OTHER_RACTORS in found.conditions),
        }
        problem = self.armed.ended
        notes = tuple(
            text for bit, text in _CONDITIONS.items() if found.conditions & bit
        )
        if isinstance(problem, NoSuchTarget):
            return CallsEnd(self.pid, counters, (), notes, None)
        return CallsEnd(self.pid, counters, self.armed.overhead, notes, problem)

    def _stop(self) -> int | None:
        """Disarm the hook; return the time (ticks) after which names may be missing."""
        self._is_stopped = True
        if self.armed.ended is not None:
            return None
        self.armed.begin_end()
        pair = self.armed.look_at_clock()
        if pair is None:
            return None
        self.armed.learn()
        return pair.ticks if self.armed.disarm() else None


class InterpretedProcess(TracedProcess[Told]):
    """A process whose records are interpreted as they arrive."""

    def __init__(self, pid: int, armed: Armed, calls: CallInterpreter[Told]) -> None:
        super().__init__(pid, armed)
        self._calls = calls

    def rest(self) -> Iterator[Told]:
        yield from self._calls.finish()

    def waiting(self) -> int:
        return super().waiting() + self._calls.waiting

    def stopped(self, until: int) -> None:
        self._calls.until = until


class ToldProcess(InterpretedProcess[ReportedCall]):
    """A process whose calls are yielded one by one."""

    def __init__(self, pid: int, armed: Armed, has_cpu: bool) -> None:
        process = hooked(pid, armed, has_cpu)
        sink = ReportedCalls(process, armed.method)
        super().__init__(pid, armed, CallInterpreter(process, sink))

    def step(self) -> Iterator[ReportedCall]:
        self.learn()
        step = self._ring.step()
        self.is_behind = step is not None
        if step is not None:
            yield from self._calls.feed(step)


def hooked(pid: int, armed: Armed, has_cpu: bool = False) -> HookedProcess:
    """Return the data that is needed to read a process's rings."""
    return HookedProcess(
        pid,
        armed.scale,
        armed.wall_offset,
        [each.expressions for each in armed.select],
        has_cpu,
        armed.shares_natives,
        armed.shared.record_size,
    )
