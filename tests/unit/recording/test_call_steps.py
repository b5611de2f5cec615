"""Recordings of calls from rings: the events read back equal those seen live."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_call_recording import (
    ENTRY,
    META,
    METHODS,
    PLACE,
    RECORDS,
    RETURN,
    STACK,
    TEXT,
    THREAD,
    packed,
    plain,
)
from test_call_recording import SWITCHES as SWITCHED

from processes import times
from rbtrace_py.aggregate.call_interpreter import CallInterpreter, HookedProcess
from rbtrace_py.aggregate.calls import ReportedCall
from rbtrace_py.aggregate.reportedcalls import ReportedCalls
from rbtrace_py.model.calls import (
    MAX_TICKS,
    UNKNOWN_METHOD,
    CalledMethod,
    CallRecord,
    RingStep,
    TickScale,
)
from rbtrace_py.model.switches import Switch
from rbtrace_py.recording.blocks import (
    FILE_HEADER_SIZE,
    BlockType,
    Damaged,
    block,
    blocks,
    file_header,
)
from rbtrace_py.recording.call_blocks import (
    ProcessNews,
    decode_methods,
    decode_process,
    decode_records,
    encode_process,
    process_of,
    rescaled,
)
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep
from rbtrace_py.recording.metadata import encode_meta
from sample_makers import damage_of

SEED = 20_261_123
SCALE = TickScale(1_000, 1_000, 1, 1)
PROCESS = HookedProcess(4, SCALE, 10, [(), ("self", "@x")])
FIBER: list[CallRecord] = [
    (2_005, 4, 0, STACK, 0),
    (0xED, 71, 0, PLACE, 0),
    (0xABD, 0, 0, THREAD, 0),
    (2_015, 0, 0, ENTRY, 2),
    *[
        (*struct.unpack("<QIH", part.ljust(14, b"\0")), TEXT, flags)
        for part, flags in ((b"\1\0\0\4\0'a'", 8),)
    ],
    (2_025, 0, 0, RETURN, 0),
]


def steps(*of_streams: Sequence[CallRecord], size: int = 3) -> list[RingStep]:
    """Take ``size`` records of each stream at a time; all are complete at the end."""
    found = []
    for at in range(0, max(map(len, of_streams)), size):
        parts = [
            (stream, packed(records[at : at + size]))
            for stream, records in enumerate(of_streams)
            if at < len(records)
        ]
        found.append(RingStep(0, parts))
    return [*found, RingStep(MAX_TICKS, [])]


def live(
    given_: Iterable[RingStep],
    methods: Sequence[CalledMethod] = METHODS,
    process: HookedProcess = PROCESS,
) -> list[ReportedCall]:
    def method(number: int) -> CalledMethod:
        return methods[number] if number < len(methods) else UNKNOWN_METHOD

    calls = CallInterpreter(process, ReportedCalls(process, method))
    return [*(each for step in given_ for each in calls.feed(step)), *calls.finish()]


def write(
    path: Path,
    given_: Iterable[RingStep],
    switches: Iterable[Switch] = (),
    most: int = 0,
) -> None:
    """Write the steps. Names come in the last one, after their first use."""
    waiting = [list(switches)]
    with CallsWriter(
        path,
        replace(META, most_calls=most),
        {(4, 70): "worker"},
        lambda: waiting.pop() if waiting else [],
    ) as writer:
        for number, step in enumerate(given_):
            told = RecordedStep(PROCESS, step, tids=frozenset({70, 71}))
            writer.tell(told, 2_000 + number)
        writer.tell(RecordedStep(PROCESS, None, METHODS, lost=55, ended=True), 3_000)


def test_a_recording_contains_what_was_seen_live(tmp_path: Path) -> None:
    """Names, values, threads, and times are the same."""
    path = tmp_path / "a.rbrec"
    given_ = steps(RECORDS, FIBER)
    write(path, given_, SWITCHED)
    recording = CallsRecording(path)
    read = list(recording)
    assert plain(read) == plain(live(given_))
    assert [r.values for r in read] == [r.values for r in live(given_)]
    assert (("self", "'a'"),) in [r.values for r in read]
    assert [r.method.full_name for r in read[:2]] == ["A#é\\u000a", "B.c"]
    assert recording.names == {(4, 70): "worker", (4, 71): ""}
    assert (recording.is_complete, damage_of(recording)) == (True, "")
    assert recording.statistics.failed == 55
    found = {(thread.pid, thread.tid, number) for thread, number in recording.stacks()}
    assert found == {(4, 70, 3), (4, 71, 4)}
    timeline = list(recording.timeline())
    assert [each for each in timeline if isinstance(each, Switch)] == SWITCHED
    assert plain([e for e in timeline if isinstance(e, ReportedCall)]) == plain(read)


def test_only_so_many_calls(tmp_path: Path) -> None:
    path = tmp_path / "a.rbrec"
    given_ = steps(RECORDS, FIBER)
    write(path, given_, most=1)
    recording = CallsRecording(path)
    read = list(recording)
    assert recording.statistics.samples == 1
    assert plain(read) == plain(live(given_))[: len(read)]
    assert read[-1].event.what.name == "RETURNED"


def test_open_calls_end_with_the_file(tmp_path: Path) -> None:
    """Each call that began has an end, even if the writer was not closed."""
    path = tmp_path / "a.rbrec"
    given_ = steps(RECORDS)
    write(path, given_)
    data = path.read_bytes()
    whole = plain(CallsRecording(path))
    path.write_bytes(data[: data.rindex(b"rblk", 0, data.index(b'"ended"'))])
    cut = CallsRecording(path)
    assert [row[:-1] for row in plain(cut)] == [row[:-1] for row in whole]
    assert not cut.is_complete


def test_records_later_than_the_hook_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.rbrec"
    with CallsWriter(path, META, {}) as writer:
        for step in steps(RECORDS):
            writer.tell(RecordedStep(PROCESS, step, METHODS, until=2_010), 1)
    assert [r.event.what.name for r in CallsRecording(path)] == [
        *("ENTERED", "ENTERED"),
        *("ENDED", "ENDED"),
    ]


@pytest.mark.parametrize(
    ("clock", "ticks"),
    [((1_000 + 3_000, 1_000 + 1_001), 3_000), ((1_000, 1_000), 2), ((9_000, 3), 2)],
)
def test_a_clock_that_is_read_again(clock: tuple[int, int], ticks: int) -> None:
    """The end gives a more exact rate, unless it is invalid."""
    scale = TickScale(1_000, 1_000, 3, 1) if ticks == 3_000 else SCALE
    scale = replace(scale, ticks=scale.ticks * 2, ns=scale.ns * 2)
    assert rescaled(scale, clock).ticks == ticks


def test_news_of_a_process() -> None:
    news = ProcessNews(3, PROCESS, (5, 6), 7, True)
    ((_, payload),) = blocks(BytesIO(encode_process(news)))
    read = decode_process(payload)
    assert replace(read, process=None) == replace(news, process=None)
    assert read.process is not None
    assert vars(read.process) == {
        **vars(PROCESS),
        "expressions": [[], ["self", "@x"]],
    }


@given(st.binary(max_size=200))
def test_blocks_of_anything(payload: bytes) -> None:
    for decode in (
        lambda: decode_process(payload),
        lambda: list(decode_methods(payload)),
        lambda: (process_of(payload), decode_records(payload, 16)),
    ):
        try:
            decode()
        except Damaged:
            continue


def test_files_of_blocks_that_were_changed(tmp_path: Path) -> None:
    """The checksums are valid. Each file is read up to the damage."""
    path = tmp_path / "a.rbrec"
    write(path, steps(RECORDS, FIBER), SWITCHED)
    found = list(_blocks(path))
    chance = random.Random(SEED)
    for _ in range(times(2_000)):
        changed = [(kind, bytearray(payload)) for kind, payload in found]
        for _ in range(chance.randint(1, 3)):
            _, payload = chance.choice(changed)
            if payload:
                payload[chance.randrange(len(payload))] = chance.randrange(256)
        path.write_bytes(
            file_header() + b"".join(block(kind, bytes(p)) for kind, p in changed)
        )
        recording = CallsRecording(path)
        assert len(list(recording.timeline())) < 1_000
        list(recording.stacks())


def test_records_of_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.rbrec"
    payload = struct.pack("<IIQ", 9, 0, 0)
    meta = block(BlockType.META, encode_meta(META))
    path.write_bytes(file_header() + meta + block(BlockType.RECORDS, payload))
    recording = CallsRecording(path)
    assert (list(recording), list(recording.stacks())) == ([], [])
    assert "an unknown process" in damage_of(recording)


def _blocks(path: Path) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        file.read(FILE_HEADER_SIZE)
        return list(blocks(file))
