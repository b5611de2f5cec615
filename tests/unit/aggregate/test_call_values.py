"""Values of expressions in recordings of calls, and in timelines made of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import old_calls
from old_calls import OldCallsWriter
from processes import times
from rbtrace_py.aggregate import callvalues
from rbtrace_py.aggregate.blocks import BlockType, Damaged, block
from rbtrace_py.aggregate.callrecording import CallsRecording
from rbtrace_py.aggregate.calls import (
    CallEvent,
    CallEventKind,
    CallStack,
    ReportedCall,
    Values,
)
from rbtrace_py.aggregate.callwriter import MODE
from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.report.exchange.chrome import chrome_pieces
from rbtrace_py.report.exchange.perfetto import perfetto_pieces

SEED = 20_260_107
META = Meta(started_ns=1_000, unit="ns", mode=MODE, engine="agent", pids=(4,))
METHOD = CalledMethod(MethodKind.RUBY, "A", False, "a", "/a.rb", 7)
OUTER: Values = (("self", '"é\\n…"'), ("a, b", "[1, 2]"))
INNER: Values = (("x", "\x1b[1m\0\u202e"),)


def calls() -> list[ReportedCall]:
    """One with values in one without in one with, and one behind it."""
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


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "calls.rbrec"
    with OldCallsWriter(path, META, {}) as writer:
        for told in calls():
            writer.tell_call(told)
    inner = (("x", "\\u001b[1m\\u0000\\u202e"),)
    read = [told.values for told in CallsRecording(path)]
    assert read == [OUTER, (), inner, inner, (), OUTER, (), ()]


def test_so_many_that_they_need_several_blocks(tmp_path: Path) -> None:
    path = tmp_path / "calls.rbrec"
    long = (("x", "y" * 60_000),)
    with OldCallsWriter(path, META, {}) as writer:
        for number in range(300):
            event = CallEvent(CallEventKind.ENTERED, CallStack(3, 70), 2_000 + number)
            writer.tell_call(ReportedCall(4, event, METHOD, long))
    recording = CallsRecording(path)
    assert [told.values for told in recording] == [long] * 300
    assert recording.is_complete


@pytest.mark.parametrize(
    "text", [b"", b"5", b"[5]", b'["abc"]', b'[["a", 1]]', b"[" * 10_000, b"\xff"]
)
def test_values_that_are_none(text: bytes, tmp_path: Path) -> None:
    packer = old_calls.Packer()
    packer.add(0, OUTER)
    data = packer.take()
    size = len(json.dumps(OUTER))
    with pytest.raises(Damaged):
        callvalues.unpack(data[:-size] + text)


def test_anything() -> None:
    chance = random.Random(SEED)
    packer = old_calls.Packer()
    packer.add(0, OUTER)
    packer.add(3, INNER)
    data = packer.take()
    for _ in range(times(5_000)):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = callvalues.unpack(bytes(damaged))
        except Damaged:
            continue
        assert all(len(pair) == 2 for values in found.values() for pair in values)
    assert block(BlockType.CALLS, data)
    assert packer.take() == b""


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
