"""Threads on CPUs and off them: what the scheduler did, and what follows from it.

A thread is on a CPU, or ready to run and waits for one, or asleep. Switches tell when
that changes; ``ThreadStates`` makes spans of them, ``CpuTimes`` sums by thread, and
``CpuOfCalls`` how much of each call its thread was on a CPU. Times are CLOCK_REALTIME
in nanoseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from rbtrace_py.aggregate.calls import CallEventKind, CallStack, ReportedCall, Thread
from rbtrace_py.model.switches import ENDED, READY, Switch, SwitchKind

_MOST_SPANS = 1 << 20
"""Spans of a thread that are kept to look calls up in."""
_MOST_ENDED = 1024
"""Threads that are kept when they have ended: their last calls may come later."""


class State(Enum):
    """States of a thread as reports name them."""

    RUNNING = "Running"
    RUNNABLE = "Runnable"
    SLEEPING = "Sleeping"
    DISK = "Disk sleep"
    STOPPED = "Stopped"


_STATES = {
    READY: State.RUNNABLE,
    "S": State.SLEEPING,
    "D": State.DISK,
    "T": State.STOPPED,
    "t": State.STOPPED,
}
"""By the kernel's letters; anything else sleeps."""


@dataclass(frozen=True, slots=True)
class Span:
    """A thread was so from ``start`` to ``end``; cpu: where, if it ran and if known."""

    thread: Thread
    state: State
    start: int
    end: int
    cpu: int | None = None


@dataclass(slots=True)
class Now:
    """is_guess: as it was found; the next switch says what it did in truth."""

    state: State
    since: int
    cpu: int | None = None
    is_guess: bool = False


class ThreadStates:
    """Makes spans of switches; a span is told when it is over."""

    def __init__(self) -> None:
        self.now: dict[Thread, Now] = {}

    def feed(self, switch: Switch) -> Iterator[Span]:
        """The spans that a switch ends, most often one."""
        if switch.what is SwitchKind.LOST:
            yield from self.end(switch.time)
            return
        if switch.what is SwitchKind.LEFT:
            yield from self.end(switch.time, switch.pid)
            return
        thread = (switch.pid, switch.tid)
        now = self.now.get(thread)
        if switch.what is SwitchKind.FOUND:
            if now is None:
                state = _STATES.get(switch.state, State.SLEEPING)
                # A runnable thread that never switches is on a CPU all the time.
                is_ready = state is State.RUNNABLE
                known = State.RUNNING if is_ready else state
                self.now[thread] = Now(known, switch.time, None, True)
        elif switch.what is SwitchKind.WOKEN:
            yield from self._woken(thread, now, switch)
        elif switch.what is SwitchKind.ON:
            yield from self._on(thread, now, switch)
        elif switch.what is SwitchKind.OFF:
            yield from self._off(thread, now, switch)

    def end(self, time: int, pid: int | None = None) -> Iterator[Span]:
        """No more is known, of a process or of all."""
        for thread, now in list(self.now.items()):
            if pid in (None, thread[0]):
                del self.now[thread]
                yield from _span(thread, now, now.state, time)

    def _woken(self, thread: Thread, now: Now | None, switch: Switch) -> Iterator[Span]:
        if now is not None:
            is_awake = now.state in (State.RUNNING, State.RUNNABLE)
            if is_awake and not now.is_guess:
                return  # before it had slept at all
            state = State.SLEEPING if is_awake else now.state
            yield from _span(thread, now, state, switch.time)
        self.now[thread] = Now(State.RUNNABLE, switch.time)

    def _on(self, thread: Thread, now: Now | None, switch: Switch) -> Iterator[Span]:
        if now is not None and now.state is not State.RUNNING:
            yield from _span(thread, now, now.state, switch.time)
        elif now is not None and now.is_guess:
            yield from _span(thread, now, State.RUNNABLE, switch.time)
        self.now[thread] = Now(State.RUNNING, switch.time, switch.value)

    def _off(self, thread: Thread, now: Now | None, switch: Switch) -> Iterator[Span]:
        if now is not None and (now.state is State.RUNNING or now.is_guess):
            now.cpu = switch.value
            yield from _span(thread, now, State.RUNNING, switch.time)
        if switch.state == ENDED:
            self.now.pop(thread, None)
            return
        state = _STATES.get(switch.state, State.SLEEPING)
        self.now[thread] = Now(state, switch.time)


def _span(thread: Thread, now: Now, state: State, time: int) -> Iterator[Span]:
    if time > now.since:
        cpu = now.cpu if state is State.RUNNING else None
        yield Span(thread, state, now.since, time, cpu)


@dataclass(slots=True)
class ThreadTimes:
    """Nanoseconds of a thread by state, and how often it got a CPU."""

    ns: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    intervals: int = 0


class CpuTimes:
    """Sums by thread; lost: switches that are missing."""

    def __init__(self) -> None:
        self.threads: dict[Thread, ThreadTimes] = {}
        self.lost = 0
        self._states = ThreadStates()

    def feed(self, switch: Switch) -> None:
        if switch.what is SwitchKind.LOST:
            self.lost += switch.value
        elif switch.tid:
            times = self.threads.setdefault((switch.pid, switch.tid), ThreadTimes())
            times.intervals += switch.what is SwitchKind.ON
        self._add(self._states.feed(switch))

    def end(self, time: int) -> None:
        """End all that goes on."""
        self._add(self._states.end(time))

    def by_running_time(self) -> list[tuple[Thread, ThreadTimes]]:
        """Return the threads and their times, longest running time first."""
        found = self.threads.items()
        return sorted(found, key=lambda each: (-each[1].ns[State.RUNNING], each[0]))

    def _add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.threads[span.thread].ns[span.state] += span.end - span.start


class _OnCpu:
    """The times at which a thread was on a CPU, as far as they are kept."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.total = 0
        self._starts, self._ends, self._before = array("q"), array("q"), array("q")

    def add(self, span: Span) -> None:
        if len(self._starts) >= _MOST_SPANS:
            half = _MOST_SPANS // 2
            for column in (self._starts, self._ends, self._before):
                del column[:half]
            self.since = self._starts[0]
        self._starts.append(span.start)
        self._ends.append(span.end)
        self._before.append(self.total)
        self.total += span.end - span.start

    def until(self, time: int) -> int:
        """Nanoseconds on CPUs before ``time``, of the spans that were added."""
        at = bisect_right(self._starts, time) - 1
        if at < 0:
            return 0
        return self._before[at] + min(time, self._ends[at]) - self._starts[at]


class CpuOfCalls:
    """The part of each call that its thread was on a CPU.

    Feed it with switches, and with calls when the switches until then are in.
    """

    def __init__(self) -> None:
        self._states = ThreadStates()
        self._threads: dict[Thread, _OnCpu] = {}
        self._ended: dict[Thread, None] = {}
        self._epoch = 0
        self._open: dict[CallStack, list[tuple[int, int | None]]] = {}

    def feed(self, switch: Switch) -> None:
        thread = (switch.pid, switch.tid)
        if switch.what is SwitchKind.LOST:
            # For calls that are open now it can never be known.
            self._epoch += 1
            self._threads.clear()
            self._ended.clear()
        elif switch.tid:
            # It may be another one of that number.
            self._ended.pop(thread, None)
            if thread not in self._threads:
                self._threads[thread] = _OnCpu(switch.time)
        for span in self._states.feed(switch):
            own = self._threads.get(span.thread)
            if own is not None and span.state is State.RUNNING:
                own.add(span)
        self._forget(switch)

    def _forget(self, switch: Switch) -> None:
        """Forget threads that have ended, but for the last ones."""
        if switch.what is SwitchKind.LEFT:
            ended = [each for each in self._threads if each[0] == switch.pid]
        elif switch.what is SwitchKind.OFF and switch.state == ENDED:
            ended = [(switch.pid, switch.tid)]
        else:
            return
        self._ended |= dict.fromkeys(ended)
        while len(self._ended) > _MOST_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._threads[oldest]

    def add(self, reported: ReportedCall) -> None:
        """Give a call that ends its ``cpu_ns``, where it is known."""
        event = reported.event
        thread = reported.thread
        if event.what is CallEventKind.ENTERED:
            begun = (self._epoch, self._until(thread, event.time))
            self._open.setdefault(event.stack, []).append(begun)
        elif event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
            calls = self._open.get(event.stack)
            if event.start is None or not calls:
                return
            epoch, before = calls.pop()
            if not calls:
                # There may be ever new stacks, of fibers.
                del self._open[event.stack]
            after = self._until(thread, event.time)
            if before is not None and after is not None and epoch == self._epoch:
                event.cpu_ns = after - before

    def _until(self, thread: Thread, time: int) -> int | None:
        own = self._threads.get(thread)
        if own is None or time < own.since:
            return None
        now = self._states.now.get(thread)
        if now is not None and time >= now.since:
            is_on = now.state is State.RUNNING
            return own.total + (time - now.since if is_on else 0)
        return own.until(time)
