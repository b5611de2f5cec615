"""Timelines of calls: Chrome's, Perfetto's, speedscope's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nested_calls import CallNesting
from rbtrace_py.aggregate.calls import ReportedCall
from rbtrace_py.model.calls import CalledMethod, CallRecord, MethodKind
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.report.exchange.chrome import chrome_pieces
from rbtrace_py.report.exchange.perfetto import perfetto_pieces
from rbtrace_py.report.exchange.speedscope_calls import evented_pieces

ENTRY, RETURN, C_ENTRY, C_RETURN, LOST, GC_BEGIN, GC_END = range(1, 8)
STACK, PLACE, THREAD = 11, 12, 13
NAMES = {(4, 70): "worker", (5, 70): "other"}
START = 1_700_000_000_000_000_001
METHODS = [
    CalledMethod(MethodKind.RUBY, "A", False, "a\x1b", "/a.rb", 7),
    CalledMethod(MethodKind.C, "B", True, "c"),
    CalledMethod(MethodKind.GC, None, False, None),
]


def told() -> list[ReportedCall]:
    """Two stacks: a call with a C call and a collection in it, and an unfinished
    call."""
    records: list[tuple[int, CallRecord]] = []
    for stream in (0, 1):
        records += [
            (stream, (START, stream + 1, 0, STACK, 0)),
            (stream, (0xEC, 70, 0, PLACE, 0)),
            (stream, (0xABC, 0, 0, THREAD, 0)),
        ]
    records += [
        (0, (START, 0, 0, ENTRY, 0)),
        (0, (START + 1_001, 1, 1, C_ENTRY, 0)),
        (1, (START + 1_500, 0, 0, ENTRY, 0)),
        (0, (START + 2_000, 1, 1, C_RETURN, 0)),
        (0, (START + 2_100, 2, 1, GC_BEGIN, 0)),
        (0, (START + 2_300, 2, 1, GC_END, 0)),
        (0, (START + 2_400, 9, 1, LOST, 0)),
        (0, (START + 2_450, 1, 0, C_RETURN, 1)),
        (0, (START + 2_500, 0, 0, RETURN, 0)),
    ]
    nesting = CallNesting()
    events = [event for s, record in records for event in nesting.feed(s, record)]
    events += nesting.finish(START + 3_000)
    return [ReportedCall(4, e, METHODS[e.method % 3]) for e in events]


def test_chrome() -> None:
    document = json.loads("".join(chrome_pieces(told(), NAMES)))
    events = document["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert tracks == ["worker 70", "worker 70.2"]
    slices = {
        (e["tid"], e["name"], e["ts"], e["dur"], e["cat"])
        for e in events
        if e["ph"] == "X"
    }
    assert slices == {
        (1, "A#a\x1b", 0.0, 2.5, "call"),
        (1, "B.c", 1.001, 0.999, "call"),
        (1, "garbage_collect", 2.1, 0.2, "gc"),
        (2, "A#a\x1b", 1.5, 1.5, "call"),
    }
    (lost,) = [e for e in events if e["ph"] == "i"]
    assert (lost["name"], lost["ts"]) == ("9 events lost", 2.4)


SWITCHES = [
    Switch(4, 70, START - 500, SwitchKind.FOUND, "S"),
    Switch(4, 70, START - 100, SwitchKind.WOKEN),
    Switch(4, 70, START - 50, SwitchKind.ON, "", 1),
    Switch(4, 70, START + 2_600, SwitchKind.OFF, "D", 1),
    Switch(4, 71, START + 2_650, SwitchKind.ON, "", 0),
    Switch(0, 0, START + 2_700, SwitchKind.LOST, "", 6),
    Switch(4, 70, START + 2_750, SwitchKind.ON, "", 1),
]
SPANS = {
    ("worker 70 CPU", "Sleeping", -500, 400),
    ("worker 70 CPU", "Runnable", -100, 50),
    ("worker 70 CPU", "Running (CPU 1)", -50, 2_650),
    ("worker 70 CPU", "Disk sleep", 2_600, 100),
    ("thread 71 CPU", "Running (CPU 0)", 2_650, 50),
    ("worker 70 CPU", "Running (CPU 1)", 2_750, 250),
}
LOST_AT = {("worker 70 CPU", 2_700), ("thread 71 CPU", 2_700)}


def end() -> int:
    return START + 3_000


def test_chrome_shows_cpus() -> None:
    pieces = chrome_pieces([*SWITCHES, *told()], NAMES, end)
    events = json.loads("".join(pieces))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {
        tracks[e["tid"]]: e["args"]["sort_index"]
        for e in events
        if e["name"] == "thread_sort_index"
    }
    assert sorted(order, key=lambda name: order[name]) == [
        "worker 70",
        "worker 70 CPU",
        "worker 70.2",
        "thread 71 CPU",
    ]
    # Times count from the first of all.
    ns = [(e, round(e["ts"] * 1000) - 500) for e in events if "ts" in e]
    assert {
        (tracks[e["tid"]], e["name"], at, round(e["dur"] * 1000))
        for e, at in ns
        if e["ph"] == "X" and e["cat"] == "cpu"
    } == SPANS
    lost = [(tracks[e["tid"]], at) for e, at in ns if e["name"] == "6 switches lost"]
    assert set(lost) == LOST_AT
    calls = [(e["name"], at) for e, at in ns if e.get("cat") == "call"]
    assert ("B.c", 1_001) in calls


def test_perfetto_shows_cpus() -> None:
    pieces = perfetto_pieces([*SWITCHES, *told()], NAMES, end)
    packets = [fields(packet) for packet in fields(b"".join(pieces))[1]]
    descriptors = [fields(packet[60][0]) for packet in packets if 60 in packet]
    process, *others = descriptors
    assert fields(process[3][0])[1] == [4]
    assert all(other[5] == process[1] for other in others)
    tracks = {other[1][0]: other[2][0].decode() for other in others}
    names: dict[int, str] = {}
    begun: dict[int, list[tuple[str, int]]] = {}
    spans, lost = set(), set()
    for packet in packets:
        for interned in packet.get(12, ()):
            entry = fields(fields(interned)[2][0])
            names[entry[1][0]] = entry[2][0].decode()
        for message in packet.get(11, ()):
            event, at = fields(message), packet[8][0] - START
            track = event[11][0]
            if event[9] == [1]:
                begun.setdefault(track, []).append((names[event[10][0]], at))
            elif event[9] == [2]:
                name, start = begun[track].pop()
                spans.add((tracks[track], name, start, at - start))
            elif event[23] == [b"6 switches lost"]:
                lost.add((tracks[track], at))
    assert {span for span in spans if span[0].endswith("CPU")} == SPANS
    assert lost == LOST_AT
    assert ("worker 70", "B.c", 1_001, 999) in spans
    assert not any(begun.values())


def test_nothing_at_all() -> None:
    assert json.loads("".join(chrome_pieces([], {})))["traceEvents"] == []
    assert json.loads("".join(evented_pieces([], {}, "")))["profiles"] == []
    assert len(b"".join(perfetto_pieces([], {}))) < 10


def test_speedscope() -> None:
    document = json.loads("".join(evented_pieces(told(), NAMES, "title")))
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert names == ["A#a?", "B.c", "garbage_collect"]
    first, second = document["profiles"]
    assert (first["name"], second["name"]) == ("worker 70", "worker 70.2")
    assert (first["type"], first["unit"]) == ("evented", "nanoseconds")
    assert [(e["type"], e["frame"], e["at"]) for e in first["events"]] == [
        ("O", 0, 0),
        ("O", 1, 1_001),
        ("C", 1, 2_000),
        ("O", 2, 2_100),
        ("C", 2, 2_300),
        ("C", 0, 2_500),
    ]
    assert (second["startValue"], second["endValue"]) == (1_500, 3_000)


def fields(data: bytes) -> dict[int, list[Any]]:
    """A message's fields by number: numbers and bytes."""
    found: dict[int, list[Any]] = {}
    rest = iter(data)
    for key in rest:
        number = _varint(rest, key)
        value: Any = _varint(rest, next(rest))
        if number & 7 == 2:
            value = bytes(next(rest) for _ in range(value))
        found.setdefault(number >> 3, []).append(value)
    return found


def _varint(rest: Iterator[int], byte: int) -> int:
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = next(rest)
        number |= (byte & 0x7F) << shift
        shift += 7
    return number


def test_perfetto() -> None:
    packets = [
        fields(packet) for packet in fields(b"".join(perfetto_pieces(told(), NAMES)))[1]
    ]
    assert all(packet[10] == [1] for packet in packets)
    assert packets[0][13] == [1]
    descriptors = [fields(packet[60][0]) for packet in packets if 60 in packet]
    assert [d[2] for d in descriptors[1:]] == [[b"worker 70"], [b"worker 70.2"]]
    assert descriptors[1][5] == descriptors[2][5] == descriptors[0][1]
    names: dict[int, bytes] = {}
    slices = []
    for packet in packets:
        for interned in packet.get(12, ()):
            entry = fields(fields(interned)[2][0])
            names[entry[1][0]] = entry[2][0]
        for message in packet.get(11, ()):
            event = fields(message)
            name = names[event[10][0]] if 10 in event else event.get(23, [None])[0]
            time = packet[8][0] - START
            slices.append((event[11][0], event[9][0], time, name))
    assert [s for s in slices if s[0] == 1] == [
        (1, 1, 0, b"A#a\x1b"),
        (1, 1, 1_001, b"B.c"),
        (1, 2, 2_000, None),
        (1, 1, 2_100, b"garbage_collect"),
        (1, 2, 2_300, None),
        (1, 3, 2_400, b"9 events lost"),
        (1, 2, 2_500, None),
    ]
    assert [s for s in slices if s[0] == 2] == [
        (2, 1, 1_500, b"A#a\x1b"),
        (2, 2, 3_000, None),
    ]
