"""Values of expressions in timelines of calls."""

from __future__ import annotations

import json

from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallStack,
    ReportedCall,
    Values,
)
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report.exchange.chrome import chrome_pieces
from rbtrace_py.report.exchange.perfetto import perfetto_pieces

METHOD = CalledMethod(MethodKind.RUBY, "A", False, "a", "/a.rb", 7)
OUTER: Values = (("self", '"é\\n…"'), ("a, b", "[1, 2]"))
INNER: Values = (("x", "\x1b[1m\0\u202e"),)


def calls() -> list[ReportedCall]:
    """Nested calls with, without, and with values, and a later call."""
    stack = CallStack(3, 70)
    happened: list[tuple[CallEventKind, int, int, Values]] = [
        (CallEventKind.ENTERED, 0, 2_000, OUTER),
        (CallEventKind.ENTERED, 1, 2_001, ()),
        (CallEventKind.ENTERED, 2, 2_002, INNER),
        (CallEventKind.RETURNED, 2, 2_003, INNER),
        (CallEventKind.RETURNED, 1, 2_004, ()),
        (CallEventKind.ENDED, 0, 2_005, OUTER),
        (CallEventKind.ENTERED, 0, 2_006, ()),
        (CallEventKind.RETURNED, 0, 2_007, ()),
    ]
    starts = {0: 2_000, 1: 2_001, 2: 2_002}
    told = []
    for what, depth, time, values in happened:
        start = 2_006 if time > 2_005 else starts[depth]
        event = CallEvent(what, stack, time, depth=depth, start=start)
        told.append(ReportedCall(4, event, METHOD, values))
    return told


def test_timelines() -> None:
    events = json.loads("".join(chrome_pieces(calls(), {})))["traceEvents"]
    found = [event["args"] for event in events if event["ph"] == "X"]
    place = {"path": "/a.rb", "line": 7}
    given = [{**dict(values), **place} for values in (INNER, (), OUTER, ())]
    assert found == given
    trace = b"".join(perfetto_pieces(calls(), {}))
    for name, value in OUTER:
        # Fields 10 and 6 of a DebugAnnotation, texts.
        key, text = name.encode(), value.encode()
        annotation = bytes([82, len(key)]) + key + bytes([50, len(text)]) + text
        assert trace.count(bytes([34, len(annotation)]) + annotation) == 1
