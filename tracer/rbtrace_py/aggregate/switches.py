"""Threads on and off CPUs, from context switches.

A thread is on a CPU, runnable (waiting for a CPU), or sleeping. Switches change this
state. ``ThreadStates`` turns them into spans, ``CpuTimes`` into sums by thread, and
``CpuOfCalls`` into the CPU time of each call. Times are CLOCK_REALTIME in nanoseconds.
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
"""Maximum number of spans of a thread that are kept to look up calls."""
_MOST_ENDED = 1024
"""Maximum number of ended threads to keep: their last calls may arrive later."""


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
"""States by the kernel's letters; any other letter is SLEEPING."""


@dataclass(frozen=True, slots=True)
class Span:
    """A thread's state from ``start`` to ``end``; ``cpu`` is the CPU number or None."""

    thread: Thread
    state: State
    start: int
    end: int
    cpu: int | None = None


@dataclass(slots=True)
class Now:
    """Current state; if ``is_guess``, the next switch reveals the actual state."""

    state: State
    since: int
    cpu: int | None = None
    is_guess: bool = False


class ThreadStates:
    """Turns switches into spans; a span is reported when it ends."""

    def __init__(self) -> None:
        self.now: dict[Thread, Now] = {}

    def feed(self, switch: Switch) -> Iterator[Span]:
        """Yield the spans that a switch ends, usually one."""
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
                # A runnable thread that never switches is on a CPU throughout.
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
        """End the current spans of a process, or of all processes."""
        for thread, now in list(self.now.items()):
            if pid in (None, thread[0]):
                del self.now[thread]
                yield from _span(thread, now, now.state, time)

    def _woken(self, thread: Thread, now: Now | None, switch: Switch) -> Iterator[Span]:
        if now is not None:
            is_awake = now.state in (State.RUNNING, State.RUNNABLE)
            if is_awake and not now.is_guess:
                return  # woken before it slept
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
    """Nanoseconds of a thread by state, and its number of on-CPU intervals."""

    ns: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    intervals: int = 0


class CpuTimes:
    """Times by thread; ``lost`` is the number of missing switches."""

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
        """End all current spans."""
        self._add(self._states.end(time))

    def by_running_time(self) -> list[tuple[Thread, ThreadTimes]]:
        """Return the threads and their times, longest time on CPUs first."""
        found = self.threads.items()
        return sorted(found, key=lambda each: (-each[1].ns[State.RUNNING], each[0]))

    def _add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.threads[span.thread].ns[span.state] += span.end - span.start


class _OnCpu:
    """The newest on-CPU intervals of a thread, since ``since``."""

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
        """Return the ns on CPUs before ``time``, from the spans that were added."""
        at = bisect_right(self._starts, time) - 1
        if at < 0:
            return 0
        return self._before[at] + min(time, self._ends[at]) - self._starts[at]


class CpuOfCalls:
    """Computes the CPU time of each call.

    Before a call is added, all switches up to its time must have been fed.
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
            # The CPU time of the open calls can never be known.
            self._epoch += 1
            self._threads.clear()
            self._ended.clear()
        elif switch.tid:
            # The thread id may have been reused.
            self._ended.pop(thread, None)
            if thread not in self._threads:
                self._threads[thread] = _OnCpu(switch.time)
        for span in self._states.feed(switch):
            own = self._threads.get(span.thread)
            if own is not None and span.state is State.RUNNING:
                own.add(span)
        self._forget(switch)

    def _forget(self, switch: Switch) -> None:
        """Forget threads that have ended, except for the last ones."""
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
        """Set ``cpu_ns`` of a call that ends, if known."""
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
                # Fibers can create any number of stacks.
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
