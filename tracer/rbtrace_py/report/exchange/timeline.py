"""Events of timelines, for the formats of Chrome, Perfetto, and speedscope.

Each of Ruby's stacks has a track with its calls. The track of a thread's CPU states is
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall, Thread, Values
from rbtrace_py.aggregate.switches import Span, ThreadStates
from rbtrace_py.model.calls import CalledMethod
from rbtrace_py.model.switches import Switch, SwitchKind

Timeline = Iterable[ReportedCall | Switch]


@dataclass(slots=True, eq=False)
class Track:
    """Track of a timeline.

    Attributes:
        number: Number of the track, from 1.
        thread: Process and kernel thread id.
        name: Name that viewers show.
        place: Place among the tracks of the thread.
        last: Time of the last event of a call.
        open: Number of calls that have not ended.
    """

    number: int
    thread: Thread
    name: str
    place: int = 0
    last: int = 0
    open: int = 0


class TimelineKind(Enum):
    """Kinds of events of a timeline."""

    TRACK = auto()
    """First event of a track."""
    BEGIN = auto()
    END = auto()
    """End of the newest open slice."""
    SLICE = auto()
    """Begin and end in one event."""
    INSTANT = auto()


# Members of an enumeration are slow to look up.
TRACK, BEGIN, END, SLICE, INSTANT = TimelineKind


class TimelineEvent(NamedTuple):
    """Event of a track.

    Attributes:
        kind: Kind of the event.
        track: Track of the event.
        time: Time of the event in ns; of a SLICE its end. The times of the calls of a
            track never decrease.
        name: Name of a slice or an instant.
        start: Recorded start in ns. None if the timeline ends before the call.
        duration: Recorded duration in ns.
        values: Expressions and their values.
        method: Method of a call.
    """

    kind: TimelineKind
    track: Track
    time: int
    name: str = ""
    start: int | None = None
    duration: int = 0
    values: Values = ()
    method: CalledMethod | None = None


_KINDS = {
    CallEventKind.ENTERED: BEGIN,
    CallEventKind.RETURNED: END,
    CallEventKind.ENDED: END,
    CallEventKind.COLLECTED: SLICE,
    CallEventKind.LOST: INSTANT,
}


def timeline_events(
    timeline: Timeline, names: Mapping[Thread, str], ended_ns: Callable[[], int] = int
) -> Iterator[TimelineEvent]:
    """Yield the events of a timeline.

    Args:
        timeline: Calls and context switches, in order.
        names: Names of threads, which may grow meanwhile.
        ended_ns: Returns the end of the timeline, once all of it was read.
    """
    tracks = _Tracks(names)
    for each in timeline:
        if isinstance(each, Switch):
            yield from tracks.switched(each)
        else:
            yield from tracks.called(each)
    yield from tracks.end(ended_ns())


class _Tracks:
    """Tracks by the keys of stacks and threads."""

    def __init__(self, names: Mapping[Thread, str]) -> None:
        self._names = names
        self._tracks: dict[tuple[int, ...], Track] = {}
        self._states = ThreadStates()
        self._begun: dict[Track, None] = {}

    def called(self, reported: ReportedCall) -> Iterator[TimelineEvent]:
        event, values, method = reported.event, reported.values, reported.method
        stack, start, duration = event.stack, event.start, event.duration or 0
        key = (reported.pid, stack.tid, stack.thread, stack.number)
        track = self._tracks.get(key)
        if track is None:
            # Place 1 is for the thread's CPU states.
            is_fiber = stack.fiber > 1
            suffix, place = (f".{stack.fiber}", stack.fiber) if is_fiber else ("", 0)
            yield self._new(key, reported.thread, suffix, place)
            track = self._tracks[key]
        track.last = time = max(event.time, track.last)
        kind = _KINDS.get(event.what)
        if kind is BEGIN:
            self._begun[track] = None
            track.open += 1
        elif kind is END and start is not None and track.open:
            track.open -= 1
        elif kind is not INSTANT and (kind is not SLICE or start is None):
            return
        is_lost = kind is INSTANT
        name = f"{event.count} events lost" if is_lost else method.full_name
        start = event.time if start is None else start
        yield TimelineEvent(kind, track, time, name, start, duration, values, method)

    def switched(self, switch: Switch) -> Iterator[TimelineEvent]:
        """End a thread's state; a loss is shown with each of them."""
        known = list(self._states.now) if switch.what is SwitchKind.LOST else []
        yield from self._spans(self._states.feed(switch))
        many = "1 switch" if switch.value == 1 else f"{switch.value} switches"
        lost = (switch.time, f"{many} lost", switch.time)
        for thread in known:
            yield from self._cpu_track(thread)
            yield TimelineEvent(INSTANT, self._tracks[thread], *lost)

    def end(self, time: int) -> Iterator[TimelineEvent]:
        """End the states at a time, and open calls at the last event of their track."""
        yield from self._spans(self._states.end(time))
        for track in self._begun:
            yield from [TimelineEvent(END, track, track.last)] * track.open

    def _spans(self, spans: Iterable[Span]) -> Iterator[TimelineEvent]:
        for span in spans:
            yield from self._cpu_track(span.thread)
            cpu = "" if span.cpu is None else f" (CPU {span.cpu})"
            times = (span.end, f"{span.state.value}{cpu}", span.start)
            duration = span.end - span.start
            yield TimelineEvent(SLICE, self._tracks[span.thread], *times, duration)

    def _cpu_track(self, thread: Thread) -> Iterator[TimelineEvent]:
        if thread not in self._tracks:
            # Viewers sort by name, so it comes behind the calls.
            yield self._new(thread, thread, " CPU", 1)

    def _new(
        self, key: tuple[int, ...], thread: Thread, suffix: str, place: int
    ) -> TimelineEvent:
        """Make a track, named ``worker 47``, ``thread 47.2``, or ``worker 47 CPU``."""
        name = f"{self._names.get(thread) or 'thread'} {thread[1]}{suffix}"
        track = Track(len(self._tracks) + 1, thread, name, place)
        self._tracks[key] = track
        return TimelineEvent(TRACK, track, 0)
