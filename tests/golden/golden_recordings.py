"""The recordings beside this file: one of each kind, made once by version 0.1.0
(``records`` by 0.3.0).

``RBTRACE_GOLDEN=write`` makes those that are not there. None is ever made anew: that an
old file can be read is what they are for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from old_calls import OldCallsWriter
from rbtrace_py.aggregate.calls import CallEventKind, CallNesting, ReportedCall
from rbtrace_py.aggregate.callwriter import MODE, CallsWriter, RecordedStep
from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.aggregate.recording import RecordingWriter
from rbtrace_py.aggregate.reportedcalls import HookedProcess
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.switches import Switch, SwitchKind
from rbtrace_py.model.calls import (
    CalledMethod,
    CallRecord,
    MethodKind,
    RingStep,
    TickScale,
)
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
STACK, PLACE, THREAD = 11, 12, 13
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
    """Calls with their streams: nested, of C, recursive, collecting, lost, open."""
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
    """The same as events, with values."""
    nesting = CallNesting()
    records = of_two_threads()
    events = [event for s, record in records for event in nesting.feed(s, record)]
    for event in [*events, *nesting.finish(START + 3_000_000)]:
        values = VALUES if event.what in CALLED and event.method == 3 else ()
        yield ReportedCall(4, event, METHODS[event.method % len(METHODS)], values)


def calls(path: Path) -> None:
    waiting = [SWITCHES[:4], SWITCHES[4:]]
    meta = replace(META, unit="ns", rate=0.0, mode=MODE, engine="agent", pids=(4,))
    take = lambda: waiting.pop(0) if waiting else []  # noqa: E731
    with OldCallsWriter(path, meta, NAMES, take) as writer:
        for each in told():
            writer.tell_call(each)


def calls_as_records(path: Path) -> None:
    """The same as the hook wrote it, in two steps and with a name that comes late."""
    waiting = [SWITCHES[:4], SWITCHES[4:]]
    meta = replace(META, unit="ns", rate=0.0, mode=MODE, engine="agent", pids=(4,))
    take = lambda: waiting.pop(0) if waiting else []  # noqa: E731
    process = HookedProcess(4, TickScale(START, 0, 1, 1), START, [("self",)])
    records = of_two_threads()
    with CallsWriter(path, meta, NAMES, take) as writer:
        for part, methods in ((records[:9], METHODS[:1]), (records[9:], METHODS[1:])):
            parts = [
                (stream, b"".join(packed(r) for each, r in part if each == stream))
                for stream in (0, 1)
            ]
            step = RingStep(START + 1_600_000, parts)
            tids = frozenset({70, 71})
            writer.tell(RecordedStep(process, step, methods, tids), START)
        ended = RecordedStep(process, clock=(START + 4, 4), lost=9, ended=True)
        writer.tell(ended, START)


def packed(record: CallRecord) -> bytes:
    return struct.pack("<QIHBB", *record)


CPU = replace(META, unit="ns", mode="cpu", rubies=("2.7.8", "3.3.6"))
RECORDINGS: dict[str, Callable[[Path], None]] = {
    "samples": lambda path: samples(path, 40),
    "later": lambda path: samples(path, 7),
    "cpu": lambda path: samples(path, 9, CPU, 10_000_000),
    "calls": calls,
    "records": calls_as_records,
}


def make_missing() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in RECORDINGS.items():
        path = FOLDER / f"{name}.rbrec"
        if not path.exists():
            make(path)
