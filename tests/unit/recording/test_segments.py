"""A folder of recordings: each is complete, and together they equal the live calls."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_call_recording import (
    ENTRY,
    GC_BEGIN,
    GC_END,
    LOST,
    META,
    METHODS,
    PLACE,
    RETURN,
    STACK,
    THREAD,
    packed,
    plain,
)
from test_call_steps import PROCESS, live

from rbtrace_py.aggregate.sampling import Incomplete
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.calls import MAX_TICKS, CallRecord, RingStep
from rbtrace_py.recording import call_recording
from rbtrace_py.recording.blocks import FILE_HEADER_SIZE
from rbtrace_py.recording.call_blocks import rescaled
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_segments import SegmentsWriter, segments_in
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from sample_makers import damage_of

SECOND = 1_000_000_000
SEED = 20_261_124
Make = Callable[..., SegmentsWriter]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SegmentsWriter] = []

    def begin(keep_ns: int = 16 * SECOND, most: int = 1 << 30) -> SegmentsWriter:
        def segment(path: Path) -> CallsWriter:
            return CallsWriter(path, META, {(4, 70): "worker"})

        made.append(SegmentsWriter(tmp_path, segment, keep_ns, most, 0))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def stack_of(stream: int) -> list[CallRecord]:
    return [
        (1_000 + stream, 7 + stream, 0, STACK, 0),
        (0xEC, 70 + stream, 0, PLACE, 0),
        (0xABC, 0, 0, THREAD, 0),
    ]


def tree(time: int) -> list[CallRecord]:
    return [
        (time, 0, 0, ENTRY, 0),
        (time + 1, 1, 1, ENTRY, 0),
        (time + 2, 1, 1, RETURN, 0),
        (time + 3, 0, 0, RETURN, 0),
    ]


def step(*of_streams: list[CallRecord], **more: int) -> RecordedStep:
    parts = [(stream, packed(each)) for stream, each in enumerate(of_streams) if each]
    found = RingStep(MAX_TICKS, parts)
    return RecordedStep(PROCESS, found, tids=frozenset({70, 71}), **more)


def named(found: RecordedStep) -> RecordedStep:
    return RecordedStep(PROCESS, found.step, METHODS, found.tids)


def test_each_segment_says_all_that_it_needs(tmp_path: Path, make: Make) -> None:
    """The names, threads, and stacks were otherwise only in the first one."""
    steps = [step(stack_of(0) + tree(2_000), stack_of(1) + tree(2_100))]
    steps += [step(tree(3_000 * n), tree(3_000 * n + 100)) for n in range(1, 4)]
    writer = make()
    for number, each in enumerate(steps):
        writer.tell(each if number else named(each), number * SECOND + number)
    writer.close()
    paths = segments_in(tmp_path)
    assert len(paths) == 4
    for path in paths:
        recording = CallsRecording(path)
        read = list(recording)
        assert [r.method.full_name for r in read[:2]] == ["A#é\\u000a", "B.c"]
        assert {(r.event.stack.tid, r.event.stack.number) for r in read} == {
            *((70, 7), (71, 8))
        }
        assert (len(read), recording.is_complete) == (8, True)
        assert recording.names[4, 70] == "worker"
    whole = CallsRecording(tmp_path)
    seen = live([each.step for each in steps if each.step])
    assert sorted(plain(whole)) == sorted(plain(seen))
    assert (whole.statistics.samples, whole.is_complete) == (16, True)


def test_threads_that_came_and_went(tmp_path: Path, make: Make) -> None:
    """A segment names only its own methods; with all names, it would grow for days."""
    writer = make()
    for number in range(5):
        place = (0xEC, 100 + number, 0, PLACE, 0)
        records = [stack_of(0)[0], place, *tree(3_000 + 10 * number)]
        found = replace(step(records), tids=frozenset({100 + number}))
        writer.tell(found, number * 2 * SECOND)
    writer.close()
    names = [CallsRecording(path).names for path in segments_in(tmp_path)]
    assert [set(each) for each in names] == [{(4, 100 + n)} for n in range(5)]


def test_a_tree_is_not_cut(tmp_path: Path, make: Make) -> None:
    """An exception is a call tree that lasts as long as a segment."""
    first, second = tree(2_000)[:2], tree(2_000)[2:]
    writer = make()
    writer.tell(named(step(stack_of(0) + first)), 0)
    writer.tell(step(second), SECOND * 3 // 2)
    writer.tell(step(tree(4_000)[:1]), SECOND * 5 // 3)
    writer.tell(step(tree(4_000)[1:]), 9 * SECOND)
    writer.close()
    kinds = [
        [each.event.what.name for each in CallsRecording(path)]
        for path in segments_in(tmp_path)
    ]
    assert kinds == [
        ["ENTERED", "ENTERED", "RETURNED", "RETURNED"],
        ["ENTERED", "ENDED"],
        ["ENTERED", "RETURNED", "RETURNED"],
    ]


def test_only_calls_keep_a_segment_open(tmp_path: Path, make: Make) -> None:
    """Neither a stack without calls nor a collection keeps a segment open."""
    collected = [(5_000, 2, 0, GC_BEGIN, 0), (5_001, 2, 0, GC_END, 0)]
    writer = make()
    writer.tell(named(step(stack_of(0) + tree(2_000) + collected, stack_of(1))), 0)
    writer.tell(step(collected), SECOND)
    writer.tell(step(tree(6_000)[:1], tree(6_000)), SECOND * 2)
    writer.tell(step(collected), SECOND * 3)
    writer.tell(step(stack_of(0)), SECOND * 3)
    writer.tell(step(tree(7_000)), SECOND * 4)
    writer.close()
    sizes = [len(list(CallsRecording(path))) for path in segments_in(tmp_path)]
    assert sizes == [5, 1, 7, 4]


def test_the_clock_as_it_was_read_last(tmp_path: Path, make: Make) -> None:
    """A segment in which it was not read has the same times, not the first rate's."""
    writer = make()
    clock = (1_001_000, 1_002_000)
    read = replace(step(stack_of(0) + tree(1_000_000)), clock=clock)
    writer.tell(read, 0)
    writer.tell(step(tree(2_000_000)), 2 * SECOND)
    writer.close()
    scale = rescaled(PROCESS.scale, clock)
    times = [scale.to_ns(at) + PROCESS.wall_offset for at in (1_000_000, 2_000_000)]
    firsts = [next(iter(CallsRecording(p))) for p in segments_in(tmp_path)]
    assert [each.event.time for each in firsts] == times


def test_the_least_that_is_kept(tmp_path: Path) -> None:
    """0 is what is left of less than a nanosecond and of less than a byte."""
    writer = SegmentsWriter(tmp_path, lambda path: CallsWriter(path, META, {}), 0, 0, 0)
    for number in range(4):
        writer.tell(step(tree(2_000 + number * 10)), number)
    writer.close()
    assert 1 <= len(segments_in(tmp_path)) <= 4


def test_a_stack_that_comes_in_parts(tmp_path: Path, make: Make) -> None:
    whole = stack_of(0) + tree(2_000)
    for cut in (1, 2):
        folder = tmp_path / str(cut)
        segment = lambda path: CallsWriter(path, META, {})  # noqa: E731
        writer = SegmentsWriter(folder, segment, 16 * SECOND, 1 << 30, 0)
        writer.tell(step(whole[:cut]), 0)
        writer.tell(step(whole[cut:]), 1)
        writer.tell(step(tree(3_000)), 2 * SECOND)
        writer.close()
        last = CallsRecording(segments_in(folder)[-1])
        assert {r.event.stack.tid for r in last} == {70}
        assert {r.event.stack.thread for r in last} == {0xABC}


def test_the_oldest_are_deleted(tmp_path: Path, make: Make) -> None:
    """Old segments are deleted by size and by age, but no other files are."""
    other = tmp_path / "shop.rbrec"
    other.write_bytes(b"mine")
    os.utime(other, ns=(0, 0))
    writer = make(most=64 << 10)
    chance = random.Random(SEED)
    for number in range(400):
        records = tree(5_000 + 10 * number) * chance.randint(1, 50)
        writer.tell(step(records), number)
        writer.flush_if_due(number * 2 * SECOND)
        size = sum(path.stat().st_size for path in segments_in(tmp_path))
        assert size <= 64 << 10 or len(segments_in(tmp_path)) == 2
    writer.close()
    assert 2 <= len(segments_in(tmp_path)) <= 32
    assert other.exists()
    recording = CallsRecording(tmp_path)
    assert len(list(recording)) > 1_000
    assert recording.is_complete


def fill(folder: Path, on_full: Callable[[], None] = lambda: None) -> SegmentsWriter:
    """Record 8,000 calls in 200 seconds; the folder keeps 160 seconds."""

    def segment(path: Path) -> CallsWriter:
        return CallsWriter(path, META, {(4, 70): "worker"})

    with closing(
        SegmentsWriter(folder, segment, 160 * SECOND, 1 << 30, 0, on_full)
    ) as writer:
        writer.tell(named(step(stack_of(0))), 0)
        for second in range(200):
            calls = [each for at in range(20) for each in tree(100 * second + 4 * at)]
            writer.tell(step(calls, calls=2 * 20), second * SECOND)
            writer.flush_if_due(second * SECOND)
    return writer


def test_a_full_disk(small_disk: Path) -> None:
    """The oldest files are deleted, with one message. The others count it."""
    said: list[str] = []
    writer = fill(small_disk, lambda: said.append("full"))
    assert said == ["full"]
    read = CallsRecording(small_disk)
    times = [each.event.time for each in read]
    assert not damage_of(read)
    assert max(times) >= 100 * 199
    assert min(times) > 100
    own = read.statistics
    assert 0 < writer.deleted == own.deleted
    assert own.samples + own.deleted == 8_000


def test_a_disk_that_others_filled(small_disk: Path) -> None:
    """The recorder has no segment to delete, so it ends as any writer does."""
    (small_disk / "theirs").write_bytes(bytes(120 << 10))
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk)


def test_segments_that_are_too_old_are_deleted(tmp_path: Path, make: Make) -> None:
    writer = make(keep_ns=1)
    writer.tell(step(tree(2_000)), 0)
    writer.tell(step(tree(3_000)), 10)
    first, second = segments_in(tmp_path)
    writer.flush_if_due(first.stat().st_mtime_ns + 10 * SECOND)
    assert segments_in(tmp_path) == [second]


def test_a_folder_is_written_while_a_new_segment_begins(
    tmp_path: Path, make: Make
) -> None:
    """A reader may have listed the segments just before."""
    writer = make(keep_ns=1)
    writer.tell(step(stack_of(0) + tree(2_000)), 0)
    writer.tell(step(tree(3_000)), 10)
    _, newest = segments_in(tmp_path)
    newest.unlink()
    assert CallsRecording(tmp_path).is_written
    writer.close()
    assert not CallsRecording(tmp_path).is_written


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A recorder may start in the same second, or after the clock was set back."""
    times = (5, 5, 5, 3, 3, 9)
    folder = tmp_path / "restarted"
    for number, seconds in enumerate(times):
        segment = lambda path: CallsWriter(path, META, {})  # noqa: E731
        now = seconds * SECOND
        writer = SegmentsWriter(folder, segment, 16 * SECOND, 1 << 30, now)
        writer.tell(step(stack_of(0) + tree(2_000 + 10 * number)), now)
        writer.close()
    read = [next(iter(CallsRecording(path))) for path in segments_in(folder)]
    assert len(read) == len(times)
    assert [r.event.time for r in read] == sorted(r.event.time for r in read)


def test_numbers_begin_anew(tmp_path: Path) -> None:
    """A segment with a seventh digit would never be read or deleted."""
    (tmp_path / "19700101T000000-900000.rbrec").touch()
    for now in (0, 0, SECOND):
        segment = lambda path: CallsWriter(path, META, {})  # noqa: E731
        SegmentsWriter(tmp_path, segment, SECOND, 1 << 30, now).close()
    assert [path.stem for path in segments_in(tmp_path)] == [
        *(f"19700101T000000-90000{number}" for number in range(3)),
        "19700101T000001-000001",
    ]


def test_a_clock_that_is_set_back(tmp_path: Path, make: Make) -> None:
    """Otherwise a segment would last until the clock reaches the same time again."""
    writer = make()
    writer.tell(step(stack_of(0)), 0)
    for number, seconds in enumerate((100, 0, 2, 4)):
        writer.tell(step(tree(3_000 + 10 * number)), seconds * SECOND)
    writer.close()
    assert len(segments_in(tmp_path)) == 5
    times = [each.event.time for each in CallsRecording(tmp_path)]
    assert (len(times), times) == (16, sorted(times))


def test_losses_count_only_for_their_own_segment(tmp_path: Path, make: Make) -> None:
    writer = make()
    lost = (1_500, 9, 0, LOST, 0)
    writer.tell(step([*stack_of(0), lost, *tree(2_000)], lost=9), 0)
    writer.tell(step(tree(3_000), lost=9), 2 * SECOND)
    writer.tell(step([(3_500, 2, 0, LOST, 0), *tree(4_000)], lost=11), 4 * SECOND)
    writer.close()
    recording = CallsRecording(tmp_path)
    found = [each.event.count for each in recording if each.event.count]
    assert (found, recording.statistics.failed) == ([9, 2], 11)


def test_what_is_read_while_it_is_written(tmp_path: Path, make: Make) -> None:
    """The last second may be missing. Segments that are deleted meanwhile are read."""
    writer = make()
    for number in range(4):
        writer.tell(step(stack_of(0) + tree(3_000 + number)), number * 2 * SECOND)
    recording = CallsRecording(tmp_path)
    assert (len(list(recording)), recording.is_complete) == (12, False)
    for path in segments_in(tmp_path):
        path.unlink()
    assert len(list(recording)) == 12
    assert len(list(recording.stacks())) >= 3


def test_the_oldest_is_deleted_before_it_is_read(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make()
    writer.tell(step(stack_of(0) + tree(3_000)), 0)
    writer.close()
    found = segments_in(tmp_path)
    listings = iter([[tmp_path / "gone.rbrec", *found], found])
    monkeypatch.setattr(call_recording, "segments_in", lambda folder: next(listings))
    recording = CallsRecording(tmp_path)
    assert (recording.meta, len(list(recording))) == (META, 4)


def test_files_without_a_beginning(tmp_path: Path, make: Make) -> None:
    """A full disk or a crash leaves them; the files beside them are read."""
    writer = make()
    writer.tell(step(stack_of(0) + tree(3_000)), 0)
    writer.close()
    for broken in (b"", b"\0" * 4096):
        for name in ("19690101T000000-000001.rbrec", "20700101T000000-000001.rbrec"):
            (tmp_path / name).write_bytes(broken)
        recording = CallsRecording(tmp_path)
        assert len(list(recording)) == 4
        assert ("not a recording" in damage_of(recording)) == bool(broken)


def test_a_segment_without_an_end(tmp_path: Path, make: Make) -> None:
    """A killed recorder leaves it. A later recorder continues in the same folder."""
    writer = make()
    writer.tell(step(stack_of(0) + tree(3_000)), 0)
    writer.close()
    (first,) = segments_in(tmp_path)
    with first.open("rb") as file:
        header = file.read(FILE_HEADER_SIZE)
    name = "20700101T000000-000001.rbrec"
    (tmp_path / name).write_bytes(header)
    recording = CallsRecording(tmp_path)
    assert len(list(recording)) == 4
    found = recording.statistics.incomplete
    assert found == Incomplete("cut off", recording.statistics.ended_ns, name)
    (tmp_path / name).unlink()
    os.truncate(first, first.stat().st_size - 20)
    writer = SegmentsWriter(
        tmp_path, lambda path: CallsWriter(path, META, {}), SECOND, 1 << 30, SECOND
    )
    writer.tell(step(stack_of(0) + tree(4_000)), SECOND)
    recording = CallsRecording(tmp_path)
    assert len(list(recording)) == 8
    found = recording.statistics.incomplete
    assert found is not None
    assert (found.reason, found.detail) == ("cut off", first.name)
    assert recording.is_written
    writer.close()


def test_only_one_writes(tmp_path: Path, make: Make) -> None:
    make()
    with pytest.raises(BadRecording, match="another rbtrace-py is writing into"):
        make()


def test_a_folder_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="has no recordings"):
        CallsRecording(tmp_path)
    assert struct.calcsize("<QIHBB") == PROCESS.record_size
