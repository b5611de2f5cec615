"""Slow spans as a timeline: each has a track, on which its stack changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from rbtrace_py.aggregate.slow.spans import SUSPENDED, Exemplar, StackTime
from rbtrace_py.report.exchange.perfetto import encoded
from rbtrace_py.report.exchange.timeline import BEGIN, END, TRACK, TimelineEvent, Track
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.slow_spans import argument_texts
from rbtrace_py.report.units import duration


def slow_timeline_pieces(exemplars: Sequence[Exemplar]) -> Iterator[bytes]:
    """Yield a Perfetto trace of slow spans in pieces."""
    return encoded(_events(exemplars))


def _events(exemplars: Sequence[Exemplar]) -> Iterator[TimelineEvent]:
    for number, (span, _, times) in enumerate(exemplars, 1):
        name = f"{number}. {span.series} {duration(span.duration_ns, PLAIN)}"
        track = Track(number, (span.event.pid, span.event.tid), name)
        texts = tuple(argument_texts(span, PLAIN))
        yield TimelineEvent(TRACK, track, span.began_ns)
        yield TimelineEvent(BEGIN, track, span.began_ns, span.series, values=texts)
        yield from _slices(track, times)
        yield TimelineEvent(END, track, span.ended_ns)


def _slices(track: Track, times: Sequence[StackTime]) -> Iterator[TimelineEvent]:
    """Yield the slices of frames.

    A frame that stays on the stack from one sample to the next is one slice.
    """
    opened: list[str] = []
    last = 0
    for began, ended, part, stack in times:
        names = [f"({part})"] if part == SUSPENDED else [f.name for f in stack.frames]
        same = takewhile(lambda two: two[0] == two[1], zip(opened, names, strict=False))
        common = len(list(same)) if began == last else 0
        yield from [TimelineEvent(END, track, last)] * len(opened[common:])
        for name in names[common:]:
            yield TimelineEvent(BEGIN, track, began, name)
        opened, last = names, ended
    yield from [TimelineEvent(END, track, last)] * len(opened)
