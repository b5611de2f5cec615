"""The recordings beside this file: one of each kind, made once by version 0.1.0
(``records`` and ``with-values`` by 0.3.0). ``calls`` is not in RECORDINGS: no version
writes such a file any more, and ``report`` refuses it.

``RBTRACE_GOLDEN=write`` makes the missing ones, and leaves the others: they show that
old files can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nested_calls import CallNesting
from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.calls import (
    CALL_TEXT_GOES_ON,
    CALL_VALUES,
    CalledMethod,
    CallRecord,
    MethodKind,
    RingStep,
    TickScale,
)
from rbtrace_py.model.printable import printable
from rbtrace_py.model.recording_meta import CALLS_MODE, Meta
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from rbtrace_py.recording.sample_recording import RecordingWriter
from sample_makers import START, shop

FOLDER = Path(__file__).parent / "recordings"
META = Meta(
    START,
    "samples",
    100.0,
    "wall",
    "memory",
    (4211, 4300),
    "ruby shop.rb",
    ("3.3.6",),
    "rbtrace-py 0.1.0",
    "/app",
)


def samples(path: Path, rounds: int, meta: Meta = META, weight: int = 1) -> None:
    statistics = Statistics(meta.unit, meta.rate)
    with RecordingWriter(path, meta, statistics) as writer:
        for sample in shop(rounds):
            writer.add(sample._replace(weight=sample.weight * weight))
        statistics.rounds, statistics.failed, statistics.late = rounds, 3, 2
        statistics.ended_ns = START + rounds * 10**7


ENTRY, RETURN, C_ENTRY, C_RETURN, LOST, GC_BEGIN, GC_END = range(1, 8)
STACK, PLACE, THREAD, TEXT = 11, 12, 13, 14
NAMES = {(4, 70): "worker", (4, 71): "other"}
METHODS = [
    CalledMethod(MethodKind.RUBY, "Shop::Order", False, "total", "/app/order.rb", 7),
    CalledMethod(MethodKind.C, "Array", True, "new"),
    CalledMethod(MethodKind.GC, None, False, None),
    CalledMethod(MethodKind.RUBY, "É", False, "a b;\n", "/app/é b.rb", 9),
]
CALLED = (CallEventKind.ENTERED, CallEventKind.RETURNED, CallEventKind.ENDED)
VALUES = (("self", '"té\\n\x1b[1m…'), ("@cents", "120"))
SWITCHES = [
    Switch(4, 70, START - 500, SwitchKind.FOUND, "S"),
    Switch(4, 71, START - 400, SwitchKind.FOUND, "R"),
    Switch(4, 70, START - 100, SwitchKind.WOKEN),
    Switch(4, 70, START - 50, SwitchKind.ON, "", 1),
    Switch(4, 70, START + 2_600_000, SwitchKind.OFF, "D", 1),
    Switch(4, 71, START + 2_650_000, SwitchKind.ON, "", 0),
    Switch(0, 0, START + 2_700_000, SwitchKind.LOST, "", 6),
    Switch(4, 70, START + 2_750_000, SwitchKind.ON, "", 1),
    Switch(4, 0, START + 3_100_000, SwitchKind.LEFT),
]


def of_two_threads() -> list[tuple[int, CallRecord]]:
    """Return calls with their streams: nested, of C, recursive, collecting, lost,
    and open."""
    records: list[tuple[int, CallRecord]] = []
    for stream, tid in enumerate((70, 71)):
        records += [
            (stream, (START, stream + 1, 0, STACK, 0)),
            (stream, (0xEC, tid, 0, PLACE, 0)),
            (stream, (0xABC, 0, 0, THREAD, 0)),
        ]
    return [
        *records,
        (0, (START, 0, 0, ENTRY, 0)),
        (0, (START + 1_001_000, 1, 1, C_ENTRY, 0)),
        (1, (START + 1_500_000, 3, 0, ENTRY, 0)),
        (1, (START + 1_600_000, 3, 1, ENTRY, 0)),
        (1, (START + 1_700_000, 3, 1, RETURN, 0)),
        (0, (START + 2_000_000, 1, 1, C_RETURN, 0)),
        (0, (START + 2_100_000, 2, 1, GC_BEGIN, 0)),
        (0, (START + 2_300_000, 2, 1, GC_END, 0)),
        (0, (START + 2_400_000, 9, 1, LOST, 0)),
        (0, (START + 2_450_000, 1, 0, C_RETURN, 1)),
        (0, (START + 2_500_000, 0, 0, RETURN, 0)),
    ]


def told() -> Iterator[ReportedCall]:
    """Yield the events of these records, with values."""
    nesting = CallNesting()
    records = of_two_threads()
    events = [event for s, record in records for event in nesting.feed(s, record)]
    for event in [*events, *nesting.finish(START + 3_000_000)]:
        values = VALUES if event.what in CALLED and event.method == 3 else ()
        yield ReportedCall(4, event, METHODS[event.method % len(METHODS)], values)


def calls(path: Path) -> None:
    """Write calls in two steps. The names of methods come late."""
    process = HookedProcess(4, TickScale(START, 0, 1, 1), START, [("self",)])
    with _calls_writer(path) as writer:
        _write_step(writer, process, of_two_threads()[:9], METHODS[:1])
        _write_step(writer, process, of_two_threads()[9:], METHODS[1:])
        ended = RecordedStep(process, clock=(START + 4, 4), lost=9, ended=True)
        writer.tell(ended, START)


def calls_with_values(path: Path) -> None:
    """Write calls with the values of expressions, up to ``START + 3_000_000``."""
    expressions = [[name for name, _ in VALUES]]
    process = HookedProcess(4, TickScale(START, 0, 1, 1), START, expressions)
    with _calls_writer(path) as writer:
        records = list(_with_values(of_two_threads()))
        _write_step(writer, process, records[:7], METHODS)
        rest = [*records[7:], (0, (START + 3_000_000, 2, 0, GC_BEGIN, 0))]
        _write_step(writer, process, rest, ())
        writer.tell(RecordedStep(process, lost=9, ended=True), START)


def _calls_writer(path: Path) -> CallsWriter:
    waiting = [SWITCHES[:4], SWITCHES[4:]]
    meta = replace(
        META, unit="ns", rate=0.0, mode=CALLS_MODE, engine="agent", pids=(4,)
    )
    take = lambda: waiting.pop(0) if waiting else []  # noqa: E731
    return CallsWriter(path, meta, NAMES, take)


def _write_step(
    writer: CallsWriter,
    process: HookedProcess,
    records: list[tuple[int, CallRecord]],
    methods: Sequence[CalledMethod],
) -> None:
    parts = [
        (stream, b"".join(packed(r) for each, r in records if each == stream))
        for stream in (0, 1)
    ]
    step = RingStep(START + 1_600_000, parts)
    tids = frozenset({70, 71})
    writer.tell(RecordedStep(process, step, methods, tids), START)


def _with_values(
    records: list[tuple[int, CallRecord]],
) -> Iterator[tuple[int, CallRecord]]:
    """Yield the records, with VALUES after each entry of method 3."""
    texts = [printable(value).encode() for _, value in VALUES]
    lengths_and_texts = [struct.pack("<H", len(text)) + text for text in texts]
    data = struct.pack("<HB", 0, 0) + b"".join(lengths_and_texts)
    parts = [data[at : at + 14] for at in range(0, len(data), 14)]
    for stream, record in records:
        time, method, depth, kind, _ = record
        if (kind, method) != (ENTRY, 3):
            yield stream, record
            continue
        yield stream, (time, method, depth, kind, CALL_VALUES)
        for number, part in enumerate(parts, 1):
            goes_on = CALL_TEXT_GOES_ON if number < len(parts) else 0
            head = struct.unpack("<QIH", part.ljust(14, b"\0"))
            yield stream, (*head, TEXT, len(part) | goes_on)


def packed(record: CallRecord) -> bytes:
    return struct.pack("<QIHBB", *record)


CPU = replace(META, unit="ns", mode="cpu", rubies=("2.7.8", "3.3.6"))
RECORDINGS: dict[str, Callable[[Path], None]] = {
    "samples": lambda path: samples(path, 40),
    "later": lambda path: samples(path, 7),
    "cpu": lambda path: samples(path, 9, CPU, 10_000_000),
    "records": calls,
    "with-values": calls_with_values,
}


def make_missing() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in RECORDINGS.items():
        path = FOLDER / f"{name}.rbrec"
        if not path.exists():
            make(path)
