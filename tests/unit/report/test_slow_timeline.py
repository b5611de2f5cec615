"""Slow spans as a timeline, read by Perfetto's published schema."""

from __future__ import annotations

from pathlib import Path

from test_slow_lines import exemplar

from perfetto_traces import BEGIN, read, slices_of
from rbtrace_py.aggregate.slow.spans import Exemplar, StackTime
from rbtrace_py.report.exchange.slow_timeline import slow_timeline_pieces
from sample_makers import stack

MS = 1_000_000


def timed(one: Exemplar, *times: tuple[int, int, str, tuple[str, ...]]) -> Exemplar:
    """An exemplar with times in ms since its begin."""
    start = one.span.began_ns
    found = [
        StackTime(start + began * MS, start + ended * MS, part, stack(*names))
        for began, ended, part, names in times
    ]
    return one._replace(times=found)


ONE = timed(
    exemplar(90, 0, "/a"),
    (0, 10, "on CPU", ("main", "a", "b")),
    (10, 50, "sleep", ("main", "a", "sleep", "(sleep)")),
    (50, 60, "suspended", ("main", "other")),
    (60, 70, "on CPU", ("main", "a")),
    (75, 90, "on CPU", ("main", "a")),
)
TWO = timed(exemplar(60, 1, "/b"))


def test_slices(tmp_path: Path) -> None:
    path = tmp_path / "slow.pftrace"
    path.write_bytes(b"".join(slow_timeline_pieces([ONE, TWO])))
    packets = read(path)
    named = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    assert [one.name for one in named if one.name] == [
        "1. web:request 90.0 ms",
        "2. web:request 60.0 ms",
    ]
    began = ["main", "a", "b", "sleep", "(sleep)", "(suspended)"]
    again = ["main", "a", "main", "a"]
    assert slices_of(packets) == {
        1: ["web:request", *began, *again],
        2: ["web:request"],
    }
    start = ONE.span.began_ns
    events = [
        ((p.timestamp - start) // MS, p.track_event.type == BEGIN)
        for p in packets
        if p.track_event.track_uuid == 1
    ]
    opened = [at for at, is_begin in events if is_begin]
    assert opened == [0, 0, 0, 0, 10, 10, 50, 60, 60, 75, 75]
    assert [at for at, is_begin in events if not is_begin] == [
        *(10, 50, 50, 50, 50, 60, 70, 70, 90, 90, 90),
    ]


def test_arguments(tmp_path: Path) -> None:
    path = tmp_path / "slow.pftrace"
    path.write_bytes(b"".join(slow_timeline_pieces([TWO])))
    (packet,) = [p for p in read(path) if p.track_event.type == BEGIN]
    texts = [
        (one.name, one.string_value) for one in packet.track_event.debug_annotations
    ]
    assert texts == [("outcome", "raised"), ("path", '"/b"')]
