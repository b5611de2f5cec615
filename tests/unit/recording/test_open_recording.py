"""Any recording is opened, with filters, as the library and the command do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_call_recording import META, METHODS, PLACE, STACK, packed, process

import rbtrace_py
from rbtrace_py.errors import BadRecording, NoSuchTarget, UsageError
from rbtrace_py.model.calls import MAX_TICKS, CallRecord, RingStep
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from rbtrace_py.recording.open_recording import open_recording
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import Recording, RecordingWriter
from sample_makers import sample

ENTRY, RETURN = 1, 2


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """One thread calls A and, in it, B; another calls A; then A is called and open."""
    path = tmp_path / "calls.rbrec"
    first: list[CallRecord] = [
        (1_000, 1, 0, STACK, 0),
        (0xEC, 70, 0, PLACE, 0),
        (2_000, 0, 0, ENTRY, 0),
        (2_100, 1, 1, ENTRY, 0),
        (2_400, 1, 1, RETURN, 0),
        (2_500, 0, 0, RETURN, 0),
    ]
    second: list[CallRecord] = [
        (1_001, 2, 0, STACK, 0),
        (0xED, 71, 0, PLACE, 0),
        (2_200, 0, 0, ENTRY, 0),
        (2_900, 0, 0, RETURN, 0),
        (3_000, 0, 0, ENTRY, 0),
    ]
    parts = [(0, packed(first)), (1, packed(second))]
    with CallsWriter(path, META, {(4, 70): "web", (4, 71): "job"}) as writer:
        step = RingStep(MAX_TICKS, parts)
        tids = frozenset({70, 71})
        writer.tell(RecordedStep(process(), step, METHODS, tids, lost=3), 3_000)
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.rbrec"
    with RecordingWriter(path, Meta(mode="wall")) as writer:
        writer.add(sample("A#a", weight=4))
    return path


def test_each_kind_is_opened_by_one_function(calls: Path, samples: Path) -> None:
    assert isinstance(open_recording(samples), Recording)
    assert isinstance(open_recording(calls), CallsRecording)
    nothing = samples.with_name("nothing")
    nothing.write_text("no recording")
    with pytest.raises(BadRecording):
        open_recording(nothing)


def test_the_library_folds_recorded_calls(calls: Path) -> None:
    recorded = rbtrace_py.read_recording(str(calls))
    stacks = rbtrace_py.fold(recorded.profile)
    outer, inner = "A#é\\u000a /a b.rb", "B.c"
    assert stacks == {outer: 200 + 700, f"{outer};{inner}": 300}
    assert recorded.notes == ("3 events were lost during recording",)
    assert recorded.missing is None


def test_the_library_reads_each_recorded_call(calls: Path) -> None:
    found = [
        (call.name, call.thread, call.tid, call.depth, call.start_ns, call.duration_ns)
        for call in rbtrace_py.read_calls(str(calls))
    ]
    outer = "A#é\\u000a"
    assert found == [
        ("B.c", "web", 70, 1, 2_100, 300),
        (outer, "web", 70, 0, 2_000, 500),
        (outer, "job", 71, 0, 2_200, 700),
        (outer, "job", 71, 0, 3_000, None),
    ]


@pytest.mark.parametrize(
    ("filters", "tids"),
    [
        (Filters("web"), {70}),
        (Filters("^job$", pids=frozenset({4})), {71}),
        (Filters(pids=frozenset({4})), {70, 71}),
        (Filters("nobody"), set()),
        (Filters(pids=frozenset({5})), set()),
    ],
)
def test_filters_of_calls(filters: Filters, tids: set[int], calls: Path) -> None:
    assert {call.tid for call in rbtrace_py.read_calls(str(calls), filters)} == tids
    recorded = rbtrace_py.read_recording(str(calls), filters)
    assert isinstance(recorded.missing, NoSuchTarget) == (not tids)
    found = {row.thread.tid for row in recorded.profile.counts.rows()}
    assert found == tids


def test_filters_that_do_not_apply(calls: Path, samples: Path) -> None:
    states = Filters(states=frozenset({ThreadState.SLEEPING}))
    with pytest.raises(UsageError, match="calls have no states"):
        rbtrace_py.read_recording(str(calls), states)
    with pytest.raises(UsageError, match=re.escape("--thread '('")):
        rbtrace_py.read_recording(str(calls), Filters("("))
    with pytest.raises(UsageError, match="has samples, not calls"):
        rbtrace_py.read_calls(str(samples))
