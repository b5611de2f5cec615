"""Recordings of calls: written data is read back, whole or in part."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pytest

from nested_calls import CallNesting
from processes import times
from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.calls import ReportedCall, Thread
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.calls import (
    MAX_TICKS,
    CalledMethod,
    CallRecord,
    MethodKind,
    RingStep,
    TickScale,
)
from rbtrace_py.model.recording_meta import CALLS_MODE, Meta
from rbtrace_py.model.stacks import RubyThread
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.recording.blocks import BlockType, block, file_header
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from rbtrace_py.recording.metadata import encode_meta
from rbtrace_py.recording.sample_recording import Recording
from sample_makers import damage_of

ENTRY, RETURN, C_ENTRY, C_RETURN, LOST, GC_BEGIN, GC_END = range(1, 8)
STACK, PLACE, THREAD, TEXT = 11, 12, 13, 14
SEED = 20_260_105
META = Meta(started_ns=1_000, unit="ns", mode=CALLS_MODE, engine="agent", pids=(4,))
METHODS = [
    CalledMethod(MethodKind.RUBY, "A", False, "é\n", "/a b.rb", 7),
    CalledMethod(MethodKind.C, "B", True, "c"),
    CalledMethod(MethodKind.GC, None, False, None),
]
RECORDS: list[CallRecord] = [
    (1_000, 3, 0, STACK, 0),
    (0xEC, 70, 0, PLACE, 0),
    (0xABC, 0, 0, THREAD, 0),
    (2_000, 0, 0, ENTRY, 0),
    (2_010, 1, 1, C_ENTRY, 0),
    (2_020, 2, 2, GC_BEGIN, 0),
    (2_030, 2, 2, GC_END, 0),
    (2_040, 1, 1, C_RETURN, 0),
    (2_050, 55, 1, LOST, 0),
    (2_060, 1, 3, C_RETURN, 1),
    (2_070, 1, 1, C_ENTRY, 0),
]


SWITCHES = [
    Switch(4, 70, 1_900, SwitchKind.FOUND, "S"),
    Switch(4, 71, 1_900, SwitchKind.FOUND, "R"),
    Switch(4, 70, 1_950, SwitchKind.WOKEN),
    Switch(4, 70, 1_960, SwitchKind.ON, "", 3),
    Switch(0, 0, 1_970, SwitchKind.LOST, "", 5),
    Switch(4, 70, 2_090, SwitchKind.OFF, "D", 3),
    Switch(4, 0, 2_100, SwitchKind.LEFT),
]


def reported(records: Sequence[CallRecord] = RECORDS) -> list[ReportedCall]:
    nesting = CallNesting()
    events = [event for record in records for event in nesting.feed(0, record)]
    events += nesting.finish(records[-1][0])
    return [ReportedCall(4, e, METHODS[e.method % 3]) for e in events]


def process(pid: int = 4) -> HookedProcess:
    """Return a process whose ticks are nanoseconds of CLOCK_REALTIME."""
    return HookedProcess(pid, TickScale(0, 0, 1, 1))


def packed(records: Iterable[CallRecord]) -> bytes:
    return b"".join(struct.pack("<QIHBB", *record) for record in records)


def step(
    records: Iterable[CallRecord] = RECORDS, of: HookedProcess | None = None
) -> RecordedStep:
    """Return a step of one stream, without names of methods."""
    ring = RingStep(MAX_TICKS, [(0, packed(records))])
    return RecordedStep(of or process(), ring, tids=frozenset({70}))


def write(
    path: Path,
    records: Sequence[CallRecord],
    switches: Iterable[Switch] = (),
    at_once: int = len(RECORDS),
) -> None:
    """Write records, ``at_once`` of them per flush."""
    waiting = [list(switches)[:3], list(switches)[3:]]
    source = lambda: waiting.pop(0) if waiting else []  # noqa: E731
    of = process()
    with CallsWriter(path, META, {(4, 70): "worker"}, source) as writer:
        writer.tell(RecordedStep(of, None, METHODS), 0)
        for at in range(0, len(records), at_once):
            time_ns = (1 + at) * 10**9
            writer.tell(step(records[at : at + at_once], of), time_ns)
        writer.tell(RecordedStep(of, lost=55, ended=True), 0)


def test_names_of_threads_that_come_later(tmp_path: Path) -> None:
    """The name is requested once per thread, at its first event."""
    path = tmp_path / "a.rbrec"
    names: dict[Thread, str] = {}
    asked: list[Thread] = []

    def ask(thread: Thread) -> None:
        asked.append(thread)
        names[thread] = "late"

    with CallsWriter(path, META, names, ask=ask) as writer:
        of = process()
        writer.tell(step(RECORDS[:4], of), 0)
        writer.tell(step(RECORDS[4:], of), 0)
    recording = CallsRecording(path)
    assert len(list(recording)) > 0
    assert (asked, recording.names) == ([(4, 70)], {(4, 70): "late"})


def test_threads_of_two_containers_have_their_own_names(tmp_path: Path) -> None:
    """In the child, the same number belongs to another thread."""
    path = tmp_path / "a.rbrec"
    names = {(4, 70): "worker", (5, 70): "other"}
    with CallsWriter(path, META, names) as writer:
        for pid in (4, 5):
            writer.tell(step(of=process(pid)), 0)
    recording = CallsRecording(path)
    assert {each.pid for each in recording} == {4, 5}
    assert recording.names == names
    fold = CallFold()
    for each in recording:
        fold.add(each)
    counts = StackCounts(recording.statistics)
    fold.take(counts, names, int)
    rows = counts.rows()
    threads = {thread for thread, *_ in rows}
    assert {(t.pid, t.tid or 0): t.name for t in threads} == names


def plain(told: Iterable[ReportedCall]) -> list[tuple[object, ...]]:
    return [
        (
            t.pid,
            t.event.what.name,
            t.event.time,
            t.event.start,
            t.event.depth,
            t.event.count,
            t.event.stack.tid,
            t.event.stack.number,
            t.event.stack.thread,
            t.event.what.name != "LOST" and t.method.kind,
        )
        for t in told
    ]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, RECORDS)
    recording = CallsRecording(path)
    for _ in range(2):
        found = list(recording)
        assert plain(found) == plain(reported())
    names = {t.method.full_name for t in found if t.event.what.name != "LOST"}
    assert names == {"A#é\\u000a", "B.c", "garbage_collect"}
    assert (found[0].method.path, found[0].method.line) == ("/a b.rb", 7)
    assert recording.names == {(4, 70): "worker"}
    own = recording.statistics
    assert (own.samples, own.failed) == (3, 55)
    assert (recording.is_complete, damage_of(recording)) == (True, "")
    assert recording.meta == META


def test_switches_are_read_where_they_are_wanted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    write(path, RECORDS, SWITCHES, 4)
    recording = CallsRecording(path)
    for _ in range(2):
        found = list(recording.timeline())
        assert [each for each in found if isinstance(each, Switch)] == SWITCHES
        assert plain(e for e in found if isinstance(e, ReportedCall)) == plain(
            reported()
        )
        assert damage_of(recording) == ""
    assert recording.names == {(4, 70): "worker", (4, 71): ""}
    assert plain(recording) == plain(reported())
    assert recording.has_switches()
    # Events before a call precede it in the file.
    assert found[:3] == SWITCHES[:3]


def test_a_recording_without_switches(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, RECORDS)
    recording = CallsRecording(path)
    assert not recording.has_switches()
    assert len(list(recording.timeline())) == len(reported())


def test_switches_without_calls(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, (), SWITCHES)
    recording = CallsRecording(path)
    assert (list(recording), list(recording.timeline())) == ([], SWITCHES)
    assert list(Recording(path)) == []


def test_switches_are_not_kept(tmp_path: Path) -> None:
    """However many have come: only their threads are."""
    switches = (
        Switch(4, 70 + time % 2, time, SwitchKind.WOKEN) for time in range(10_000)
    )
    source = lambda: list(islice(switches, 100))  # noqa: E731
    before = made(RubyThread)
    with CallsWriter(tmp_path / "a", META, {}, source) as writer:
        for _ in range(100):
            writer.flush()
        assert made(RubyThread) - before == 2


def made(kind: type) -> int:
    """Return the number of live objects of a type."""
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_a_sampler_s_reader_leaves_it_out(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, RECORDS)
    assert list(Recording(path)) == []


def test_in_many_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, RECORDS, at_once=2)
    assert plain(CallsRecording(path)) == plain(reported())


def test_every_beginning_is_read(tmp_path: Path) -> None:
    """However the recording ended, its complete part is read."""
    path = tmp_path / "a"
    write(path, RECORDS, at_once=3)
    data = path.read_bytes()
    expected = [row for row in plain(reported()) if row[1] != "ENDED"]
    seen = set()
    for size in range(16, len(data)):
        path.write_bytes(data[:size])
        recording = CallsRecording(path)
        # Open calls end with the file, wherever it ends.
        found = [row for row in plain(recording) if row[1] != "ENDED"]
        assert found == expected[: len(found)]
        assert not recording.is_complete
        seen.add(len(found))
    assert seen == {0, 2, 5, 7}


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, RECORDS, SWITCHES)
    data = path.read_bytes()
    chance = random.Random(SEED)
    for _ in range(times(4_000)):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(16, len(data))] = chance.randrange(256)
        path.write_bytes(changed)
        timeline = list(CallsRecording(path).timeline())
        found = plain(each for each in timeline if isinstance(each, ReportedCall))
        assert found == plain(reported())[: len(found)]
        switches = [each for each in timeline if isinstance(each, Switch)]
        assert switches == SWITCHES[: len(switches)]


def test_anything_in_its_blocks(tmp_path: Path) -> None:
    """Complete blocks with arbitrary contents."""
    chance = random.Random(SEED)
    path = tmp_path / "a"
    for _ in range(times(10_000)):
        kind, size = chance.choice(
            [(BlockType.METHODS, 4 + 4 + 4), (BlockType.SWITCHES, 8 + 4 + 1 + 1 + 4)]
        )
        count = chance.randrange(1, 4)
        payload = struct.pack("<I", count) + chance.randbytes(count * size)
        head = [file_header(), block(BlockType.META, encode_meta(META))]
        path.write_bytes(b"".join([*head, block(kind, payload)]))
        recording = CallsRecording(path)
        assert list(recording.timeline()) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (
            struct.pack("<IqIBBI", 1, 5, 9, int(SwitchKind.ON), 0, 0),
            "a sample of a missing thread",
        ),
        (struct.pack("<IqIBB", 1, 5, 9, int(SwitchKind.ON), 0), "a truncated table"),
        (b"", "without a count"),
    ],
)
def test_malformed_switches(payload: bytes, reason: str, tmp_path: Path) -> None:
    """Events before the malformed block are read, and the reason is reported."""
    path = tmp_path / "a"
    write(path, RECORDS)
    whole = path.read_bytes()
    path.write_bytes(whole + block(BlockType.SWITCHES, payload))
    recording = CallsRecording(path)
    assert plain(
        e for e in recording.timeline() if isinstance(e, ReportedCall)
    ) == plain(reported())
    assert (recording.is_complete, reason in damage_of(recording)) == (False, True)


def test_a_file_that_is_not_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"no")
    with pytest.raises(BadRecording):
        CallsRecording(path)
