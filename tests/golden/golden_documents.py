"""One JSON document of each kind, with hand-made values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from golden_recordings import NAMES, SWITCHES, told

from rbtrace_py.aggregate.histogram import FloatHistogram, Histogram, SignedHistogram
from rbtrace_py.aggregate.methods import METHODS, MethodRow, group_rows
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.aggregate.switches import CpuOfCalls
from rbtrace_py.errors import RbtraceError
from rbtrace_py.model.attach import AttachResult, Cost, Detached
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread
from rbtrace_py.model.events import UNREADABLE, Event, RaiseEvent
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import (
    Binary,
    Operand,
    OperandRole,
    OperandType,
    Probe,
    ProbeRole,
    Site,
)
from rbtrace_py.model.process_state import Evaluated, MemoryUse, Raised, ThreadBacktrace
from rbtrace_py.model.stacks import SampleFlags, ThreadState
from rbtrace_py.model.vm_layout import Offset, VmDescription
from rbtrace_py.report.json.calls import call_document, calls_end_document
from rbtrace_py.report.json.dump import dump_document
from rbtrace_py.report.json.inside import (
    attached_document,
    backtraces_document,
    detached_document,
    eval_document,
    fork_document,
    memory_document,
)
from rbtrace_py.report.json.results import document
from rbtrace_py.report.json.serializer import Document
from rbtrace_py.report.json.setup import (
    doctor_document,
    layout_document,
    probes_document,
)
from rbtrace_py.report.json.trace import event_document, trace_end_document
from sample_makers import MAIN, OTHER_PROCESS, START, WORKER, stack

SERIES = "shop:checkout"
IMAGE = Binary(1, 2, "/memfd:rbtrace (deleted)", True)
RUBY = Binary(1, 3, "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2")
SITE = Site(0, 0, 0, ())
ID = Operand("id", OperandType.INTEGER, signed=True)
SKU = Operand("sku", OperandType.STRING)
DURATION = Operand("duration_ns", OperandType.INTEGER, OperandRole.DURATION)
OUTCOME = Operand("outcome", OperandType.INTEGER, OperandRole.OUTCOME)
BEGIN = Probe("shop", "checkout__begin", IMAGE, (SITE,), (ID,), ProbeRole.SPAN_BEGIN)
END = Probe(
    "shop",
    "checkout__end",
    IMAGE,
    (SITE,) * 2,
    (DURATION, OUTCOME, ID, SKU),
    ProbeRole.SPAN_END,
)
MARK = Probe("ruby", "gc__mark__begin", RUBY, (SITE,) * 3)
FIRED = Probe("shop", "refund", IMAGE, (SITE,), (ID, ID, SKU, SKU, SKU))
RAISE = Probe("ruby", "raise", RUBY, (SITE,), (SKU,))
MS = 1_000_000


class Check(NamedTuple):
    status: str
    name: str
    text: str
    advice: str = ""


def result(command: str, *groups: Group, **rest: object) -> Document:
    made = Result(command, (4211, 4300), (SERIES,), START, START + 3 * 10**9, groups)
    return document(replace(made, **rest))  # type: ignore[arg-type]


def latency(*values: int, key: object = None, **rest: object) -> Group:
    histogram = Histogram.from_values(values)
    return Group(SERIES, key, len(values), sum(values), histogram, **rest)  # type: ignore[arg-type]


def counts() -> Iterator[Document]:
    yield result("count", Group(SERIES, None, 42), Group("gc", None, 0))
    yield result(
        "count",
        Group(SERIES, "tea", 3, truncated=True),
        Group(SERIES, None, 2),
        Group(SERIES, "", 1, is_other=True),
        by="sku",
        counters={"other": 1, "lost": 2, "filtered": 7},
    )
    role = OperandRole.OUTCOME
    outcomes = [Group(SERIES, key, 1, key_role=role) for key in (1, 7)]
    yield result("count", *outcomes, by="outcome")


def latencies() -> Iterator[Document]:
    yield result("latency", latency(*(MS * n for n in range(1, 60))), unit="ns")
    yield result(
        "latency",
        latency(2 * MS, 3 * MS, key="tea"),
        latency(700, is_other=True),
        by="sku",
        unit="ns",
        counters={"raised": 1, "running_at_attach": 0, "lost": 4},
    )


def values() -> Iterator[Document]:
    numbers = SignedHistogram.from_values(range(-20, 40))
    yield result("values", Group(SERIES, None, 60, 570, numbers), operand="id")
    floats = FloatHistogram.from_values([float("nan"), 0.25, 0.5, float("inf")])
    yield result("values", Group(SERIES, None, 4, 0, floats), operand="price")
    groups = (Group(SERIES, "tea", 7), Group(SERIES, "é\x1b\udcff", 2))
    counters = {"unreadable": 1, "nil": 3}
    yield result("values", *groups, by="sku", operand="sku", counters=counters)


def methods() -> Iterator[Document]:
    rows = []
    for owner, name, kind, times in (
        ("Order", "total", MethodKind.RUBY, [9 * MS, 1 * MS]),
        ("Array", "sum", MethodKind.C, [3 * MS] * 3),
        (None, None, MethodKind.GC, [5 * MS]),
        (None, None, MethodKind.NO_ROOM, [1 * MS]),
    ):
        path = ("/a.rb", 3) if kind is MethodKind.RUBY else ()
        method = CalledMethod(kind, owner, kind is MethodKind.C, name, *path)
        total, count = sum(times), len(times)
        histogram = Histogram.from_values(times)
        rows.append(
            MethodRow(
                1, method, count + 1, count, total, 2 * MS, total, max(times), histogram
            )
        )
    named = dict.fromkeys(METHODS, "method") | {MethodKind.GC: "gc"}
    for command in ("latency", "count"):
        for by in ("method", None):
            groups = group_rows(rows, named, by, command == "latency")
            yield result(command, *groups, series=("method", "gc"), by=by, unit="ns")


def trace() -> Iterator[Document]:
    fired = (42, -7, "tea", UNREADABLE, None)
    cut = (False, False, True, False, False)
    yield event_document(Event(START, 4211, 4213, "puma 001", FIRED, fired, cut))
    raised = ("no tea\n\udcff",)
    yield event_document(
        RaiseEvent(START, 4211, 4213, "é", RAISE, raised, (False,), ("/a.rb:1:in `b'",))
    )
    yield trace_end_document(1234, {"filtered": 5, "lost": 2})


def probes() -> Iterator[Document]:
    yield probes_document(
        [4211, 4300],
        [
            Listed(BEGIN, False, (4211,)),
            Listed(END, True, (4211, 4300)),
            Listed(MARK, None),
        ],
    )


def doctor() -> Iterator[Document]:
    checks = [
        Check("ok", "BPF", "programs can be loaded"),
        Check("fail", "tracefs", "not mounted", "mount -t tracefs tracefs /sys"),
    ]
    yield doctor_document(4211, checks)
    yield doctor_document(None, checks[:1])


def dump() -> Iterator[Document]:
    threads = (
        DumpedThread(
            MAIN,
            ThreadState.RUNNING,
            True,
            "R",
            stack("<main>@/a.rb:2", "c!f@/a.rb:2", "g!(garbage collection)"),
            fiber=0x7EF0,
        ),
        DumpedThread(
            WORKER,
            ThreadState.WAITING,
            False,
            "S",
            stack("A#g@/a.rb", "n!native"),
            SampleFlags.TRIMMED | SampleFlags.TRUNCATED,
            fibers=(DumpedFiber(0x7F00, stack()), DumpedFiber(0x7F10, None)),
        ),
        DumpedThread(OTHER_PROCESS, ThreadState.UNKNOWN, None, "", None),
    )
    yield dump_document(
        [
            Dump(4211, "ruby shop.rb", "3.1.2", threads, None, START, 12_000),
            Dump(0, "", "3.4.1", (), "/tmp/core", signal=11, notes=("a note",)),
        ]
    )


def layout() -> Iterator[Document]:
    yield layout_document(
        VmDescription(
            4211,
            "3.3.6",
            "the library's name",
            "/usr/lib/libruby.so.3.3",
            "a1b2",
            0x7F0000000000,
            0x5600,
            "ruby_current_vm_ptr",
            None,
            "",
            {"has_ractors": True, "frame_order": "newest first"},
            (
                Offset(
                    "vm_main_thread", "rb_vm_t.ractor.main_thread", 64, "DWARF", True
                ),
                Offset("ec_cfp", "", 16, "table", False),
            ),
            ("one note",),
        )
    )


def attach() -> Iterator[Document]:
    cost = Cost(2, 1_120_000, 900_000, 61 * MS)
    yield attached_document(AttachResult(4711, cost, "ruby 3.1.2p20", None))
    yield attached_document(AttachResult(4711, None, "ruby 3.1.2p20", "no hook"))


def detach() -> Iterator[Document]:
    yield detached_document(Detached(4711, None))
    yield detached_document(Detached(4711, 815))


def evaluated() -> Iterator[Document]:
    yield eval_document(7, "1 + 1", Evaluated("2", "Integer", 1234), "out\n", "é\x1b")
    raised = Raised("NameError", "no\nx", ("(eval):1:in `x'", "/a.rb:2"))
    yield eval_document(7, "x", raised, "", "")
    yield eval_document(7, "sleep", RbtraceError("no answer", "a hint"), "", "")


def backtraces() -> Iterator[Document]:
    threads = [
        ThreadBacktrace(70, None, "run", True, False, ("/a.rb:1:in `b'", "/a.rb:2")),
        ThreadBacktrace(None, "é", "sleep", False, False, ()),
        ThreadBacktrace(72, "agent", None, False, True, ()),
    ]
    yield backtraces_document(7, threads)


def memory() -> Iterator[Document]:
    gc = {"count": 3, "compacted": False, "time": 1.5, "mode": "full", "none": None}
    yield memory_document(7, MemoryUse(gc, {"TOTAL": 9, "T_STRING": 4}, 1, None, 0))


def fork() -> Iterator[Document]:
    yield fork_document(7, 8)


def calls() -> Iterator[Document]:
    cpu = CpuOfCalls()
    for switch in SWITCHES[:4]:
        cpu.feed(switch)
    for each in told():
        cpu.add(each)
        found = call_document(each, NAMES)
        if found is not None:
            yield found
    yield calls_end_document(5, {"lost": 9, "unfinished": 1}, ["its code, asleep"])


DOCUMENTS = {
    made.__name__.replace("evaluated", "eval"): made
    for made in (
        counts,
        latencies,
        values,
        methods,
        trace,
        probes,
        doctor,
        dump,
        layout,
        attach,
        detach,
        evaluated,
        backtraces,
        memory,
        fork,
        calls,
    )
}
