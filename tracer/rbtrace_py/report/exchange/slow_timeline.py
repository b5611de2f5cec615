"""Slow spans as a trace of Perfetto's: a track each, with its stack as it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rbtrace_py.aggregate.slow.spans import SUSPENDED, Exemplar, StackTime
from rbtrace_py.report.exchange.perfetto_packets import (
    BEGIN,
    END,
    Packets,
    first_packet,
)
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.slow_spans import argument_texts
from rbtrace_py.report.units import duration


def slow_timeline_pieces(exemplars: Sequence[Exemplar]) -> Iterator[bytes]:
    """The file, in pieces."""
    packets = Packets()
    yield first_packet()
    for track, exemplar in enumerate(exemplars, 1):
        span = exemplar.span
        name = f"{track}. {span.series} {duration(span.duration_ns, PLAIN)}"
        yield from packets.described(span.event.pid, name, track)
        texts = tuple(argument_texts(span, PLAIN))
        yield packets.slice(span.began_ns, track, BEGIN, span.series, texts)
        for time, kind, frame in _slices(exemplar.times):
            yield packets.slice(time, track, kind, frame)
        yield packets.slice(span.ended_ns, track, END)


def _slices(times: Sequence[StackTime]) -> Iterator[tuple[int, int, str]]:
    """Yield times, BEGIN with a frame's name, or END of the newest.

    A frame that stays on the stack from one sample to the next is one slice.
    """
    opened: list[str] = []
    last = 0
    for began, ended, part, stack in times:
        names = [f"({part})"] if part == SUSPENDED else [f.name for f in stack.frames]
        common = _common(opened, names) if began == last else 0
        for _ in opened[common:]:
            yield last, END, ""
        for name in names[common:]:
            yield began, BEGIN, name
        opened, last = names, ended
    for _ in opened:
        yield last, END, ""


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many names two stacks have in common, from the root."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
