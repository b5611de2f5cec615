"""Recordings that are complete, truncated anywhere, damaged, or hostile."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rbtrace_py.aggregate.sampling import Incomplete, Statistics
from rbtrace_py.errors import BadRecording
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.model.stacks import Frame, FrameKind, Sample, SampleFlags, Stack
from rbtrace_py.recording import blocks as b
from rbtrace_py.recording.blocks import BlockType, block, file_header, pack_columns
from rbtrace_py.recording.lookup_tables import MAX_DEPTH
from rbtrace_py.recording.sample_recording import Recording, RecordingWriter
from sample_makers import MAIN, START, damage_of, frame, sample, shop

META = Meta(
    START,
    "samples",
    99.0,
    "wall",
    "memory",
    (4211, 4300),
    "ruby shop.rb",
    ("3.1.2",),
    "rbtrace-py 1",
)
Plain = tuple[object, ...]


def plain(samples: Iterable[Sample]) -> list[Plain]:
    """Samples compared by value."""
    return [
        (
            s.time_ns,
            s.thread.pid,
            s.thread.tid,
            s.thread.address,
            s.thread.name,
            s.thread.ractor,
            s.thread.is_main,
            s.state,
            s.stack.frames,
            s.weight,
            s.flags,
            s.fiber,
        )
        for s in samples
    ]


def write(
    path: Path, samples: Iterable[Sample], meta: Meta = META, append: bool = False
) -> None:
    with RecordingWriter(path, meta, append=append) as writer:
        for one in samples:
            writer.add(one)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.rbrec"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Refuse longer files (EFBIG), as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_once_and_keeps_complete_blocks(path: Path) -> None:
    first, second = sample("a"), sample("b")
    with RecordingWriter(path, META) as writer:
        writer.add(first)
        writer.flush()
        whole = path.stat().st_size
        writer.add(second)
        with files_of_at_most(whole + 10), pytest.raises(OSError, match="too large"):
            writer.flush()
    assert path.stat().st_size == whole + 10
    recording = Recording(path)
    assert plain(recording) == plain([first])
    end = recording.statistics.ended_ns
    assert recording.statistics.incomplete == Incomplete("cut off", end)


def test_round_trip(path: Path) -> None:
    write(path, shop(1000))
    recording = Recording(path)
    assert recording.meta == META
    for _ in range(2):
        assert plain(recording) == plain(shop(1000))
        assert recording.is_complete
        assert damage_of(recording) == ""
        assert recording.statistics.samples == 4000
        assert recording.statistics.trimmed == 500
    # Ten seconds of four samples a round: a flush a second.
    assert path.stat().st_size < 20 * 4000


def test_equal_stacks_come_back_as_one_object(path: Path) -> None:
    write(path, shop(50))
    assert len({id(s.stack) for s in Recording(path)}) <= 4 + 1 + 7


def test_losses_are_recorded(path: Path) -> None:
    statistics = Statistics(rate=99.0)
    with RecordingWriter(path, META, statistics) as writer:
        writer.add(sample("a"))
        statistics.rounds, statistics.late, statistics.failed = 100, 3, 2
        statistics.ended_ns = START + 10**9
    with RecordingWriter(path, META, statistics, append=True) as writer:
        writer.add(sample("a"))
        statistics.failed, statistics.unreadable = 5, 1
    recording = Recording(path)
    assert len(list(recording)) == 2
    assert recording.sections == 2
    assert recording.statistics == Statistics(
        "samples", 99.0, START, START + 10**9, 100, 3, 2, failed=5, unreadable=1
    )


def test_appending(path: Path) -> None:
    write(path, shop(3))
    write(path, shop(5), append=True)
    assert plain(Recording(path)) == plain([*shop(3), *shop(5)])
    write(path, shop(2))
    assert plain(Recording(path)) == plain(shop(2))


def test_the_time_between_appended_parts_does_not_count(path: Path) -> None:
    second = 10**9
    for began in (START, START + 60 * second):
        meta = replace(META, started_ns=began)
        statistics = Statistics(rate=99.0, started_ns=began)
        with RecordingWriter(path, meta, statistics, append=True):
            statistics.rounds, statistics.ended_ns = 99, began + second
    found = Recording(path).read().profile.counts.statistics
    assert (found.duration_ns, found.achieved_rate) == (2 * second, 99.0)


def test_appending_to_nothing(path: Path) -> None:
    write(path, shop(3), append=True)
    assert plain(Recording(path)) == plain(shop(3))


def test_appending_behind_a_cut(path: Path) -> None:
    write(path, shop(3))
    os.truncate(path, path.stat().st_size - 5)
    with RecordingWriter(path, META, append=True) as writer:
        assert writer.follows_cut
        for each in shop(2):
            writer.add(each)
    with RecordingWriter(path, META, append=True) as writer:
        assert not writer.follows_cut
    assert plain(Recording(path)) == plain([*shop(3), *shop(2)])


def test_appending_behind_damage(path: Path) -> None:
    """Nothing is overwritten: the blocks after the damage may be intact."""
    data, _ = small_file(path)
    damaged = data[:100] + b"?" + data[101:]
    path.write_bytes(damaged)
    with pytest.raises(BadRecording, match="is damaged"):
        write(path, shop(1), append=True)
    assert path.read_bytes() == damaged


def test_appending_to_what_is_no_recording(path: Path) -> None:
    path.write_text("precious words\n")
    with pytest.raises(BadRecording, match="not a recording"):
        write(path, shop(1), append=True)
    assert path.read_text() == "precious words\n"


def test_appending_another_unit(path: Path) -> None:
    write(path, shop(1))
    with pytest.raises(BadRecording, match="another unit"):
        write(path, [], Meta(unit="ns", mode="wall"), append=True)
    assert plain(Recording(path)) == plain(shop(1))


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (Meta(unit="samples", mode="cpu"), "another unit or mode"),
        (Meta(unit="samples", mode="wall", weights=RUN_TIME), "an older version"),
    ],
)
def test_appending_samples_that_weigh_otherwise(
    path: Path, meta: Meta, said: str
) -> None:
    write(path, shop(1))
    with pytest.raises(BadRecording, match=said):
        write(path, [], meta, append=True)
    assert plain(Recording(path)) == plain(shop(1))


def test_time_between_two_sections_is_not_sampled(path: Path) -> None:
    second = 10**9
    for began in (START, START + 60 * second):
        statistics = Statistics("ns", 99.0, began, began + 2 * second)
        meta = replace(META, unit="ns", started_ns=began)
        with RecordingWriter(path, meta, statistics, append=True) as writer:
            writer.add(sample("a")._replace(time_ns=began + second))
    recording = Recording(path)
    assert len(list(recording)) == 2
    own = recording.statistics
    assert (own.started_ns, own.ended_ns) == (START, START + 62 * second)
    assert own.duration_ns == 4 * second


def test_two_writers_do_not_mix(path: Path) -> None:
    with RecordingWriter(path, META) as writer:
        writer.add(sample("a"))
        with pytest.raises(BadRecording, match="is writing"):
            RecordingWriter(path, META, append=True)
    assert len(list(Recording(path))) == 1


def test_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE) as reader:
        write(fifo, shop(3))
        data = reader.communicate()[0]
    (tmp_path / "got").write_bytes(data)
    assert plain(Recording(tmp_path / "got")) == plain(shop(3))


def test_full_tables_begin_a_new_section(path: Path) -> None:
    samples = [sample("a", f"b{n % 40}", f"c{n}", at=n) for n in range(500)]
    with RecordingWriter(path, META, max_nodes=100) as writer:
        for one in samples:
            writer.add(one)
    recording = Recording(path)
    assert plain(recording) == plain(samples)
    assert recording.sections > 5


def test_a_clock_that_is_set_back(path: Path) -> None:
    """Later samples are written as soon as usual."""
    writer = RecordingWriter(path, META)
    for at in (200, 0, 1, 2, 150):
        writer.add(sample("a", at=at))
    # This simulates a kill at this moment: the last second is missing.
    assert [s.time_ns for s in Recording(path)] == [
        START + 10_000_000 * at for at in (200, 0, 1, 2, 150)
    ]
    writer.add(sample("a", at=151))
    assert len(list(Recording(path))) == 5
    writer.close()
    assert len(list(Recording(path))) == 6


def test_the_last_sample_before_a_long_silence(path: Path) -> None:
    writer = RecordingWriter(path, META)
    for at in (0, 1):
        writer.add(sample("a", at=at))
    writer.flush_if_due(START + 10**9 - 1)
    assert len(list(Recording(path))) == 1
    writer.flush_if_due(START + 10**9)
    assert len(list(Recording(path))) == 2
    size = path.stat().st_size
    writer.flush_if_due(START + 3 * 10**9)
    assert path.stat().st_size == size


def test_a_stack_deeper_than_is_kept(path: Path) -> None:
    deep = Stack(tuple(frame(f"f{n}") for n in range(MAX_DEPTH + 3)))
    write(path, [sample("a")._replace(stack=deep)])
    (found,) = Recording(path)
    assert found.stack.frames == deep.frames[3:]
    assert found.flags == SampleFlags.TRUNCATED


@pytest.mark.parametrize("flag", SampleFlags)
def test_each_flag_is_kept(flag: SampleFlags, path: Path) -> None:
    write(path, [sample("a")._replace(flags=flag)])
    found = Recording(path)
    assert [one.flags for one in found] == [flag]
    is_sample = flag is not SampleFlags.RUN_TIME
    own = found.statistics
    assert (own.samples, own.unclean) == (is_sample, is_sample and bool(flag))


def test_numbers_and_texts_that_do_not_fit(path: Path) -> None:
    wild = Frame(FrameKind.RUBY, "a\ud800\x1b[2J", "", "p" * 100_000, 2**40)
    one = sample("x", weight=2**70, fiber=-1)._replace(stack=Stack((wild,)))
    write(path, [one, one._replace(time_ns=-(2**70))])
    found, _ = Recording(path)
    (read,) = found.stack.frames
    assert read.name.isprintable()
    assert len(read.path) == 1 << 16
    assert found.weight == 2**64 - 1
    assert found.fiber == 0


# -------------------------------------------------- as docs/formats/recordings.md says


def read_by_the_page(data: bytes) -> tuple[dict[str, object], list[Plain]]:
    """Return META and samples, read as docs/formats/recordings.md specifies."""
    assert data[:16] == b"\x89RBTREC\n" + bytes([1, 0, 0, 0, 0, 0, 0, 0])
    at = 16
    meta: dict[str, object] = {}
    strings: list[str] = []
    frames: list[tuple[int, ...]] = []
    stacks: list[list[int]] = [[]]
    threads: list[tuple[int, ...]] = []
    samples: list[Plain] = []
    while at < len(data):
        head = data[at : at + 20]
        mark, kind, flags, zero, stored, size, check = struct.unpack("<4sBBHIII", head)
        payload = data[at + 20 : at + 20 + stored]
        at += 20 + stored
        assert (mark, zero) == (b"rblk", 0)
        assert check == zlib.crc32(head[:16] + bytes(4) + payload)
        if flags & 1:
            payload = zlib.decompress(payload)
        assert len(payload) == size
        if kind == 1:
            meta = json.loads(payload)
        elif kind == 2:
            ((lengths,), rest) = columns("I", payload)
            for length in lengths:
                strings.append(rest[:length].decode())
                rest = rest[length:]
        elif kind == 3:
            frames.extend(zip(*columns("BIIII", payload)[0], strict=True))
        elif kind == 4:
            for back, leaf in zip(*columns("II", payload)[0], strict=True):
                stacks.append([*stacks[len(stacks) - back], leaf])
        elif kind == 5:
            threads.extend(zip(*columns("IIQIIB", payload)[0], strict=True))
        elif kind == 6:
            time = 0
            for row in zip(*columns("qIIBBQQ", payload)[0], strict=True):
                time += row[0]
                pid, tid, _, name, _, _ = threads[row[1]]
                texts = [
                    (strings[n], strings[p], line - 1 if line else None)
                    for _, n, _, p, line in (frames[f] for f in stacks[row[2]])
                ]
                samples.append((time, pid, tid, strings[name], texts, *row[3:]))
    assert kind == 10
    return meta, samples


def columns(types: str, payload: bytes) -> tuple[list[tuple[int, ...]], bytes]:
    (count,) = struct.unpack("<I", payload[:4])
    at = 4
    found = []
    for code in types:
        form = f"<{count}{code}"
        found.append(struct.unpack_from(form, payload, at))
        at += struct.calcsize(form)
    return found, payload[at:]


def test_a_reader_made_of_the_page(path: Path) -> None:
    write(path, shop(300))
    meta, samples = read_by_the_page(path.read_bytes())
    expected = asdict(META)
    for name in ("most_calls", "event", "argument", "weights"):  # left out if empty
        del expected[name]
    assert meta == json.loads(json.dumps(expected))
    assert samples == [
        (
            s.time_ns,
            s.thread.pid,
            s.thread.tid or 0,
            s.thread.name,
            [(f.name, f.path, f.line) for f in s.stack.frames],
            s.state,
            s.flags,
            s.weight,
            s.fiber,
        )
        for s in shop(300)
    ]


# ------------------------------------------------------------------- cuts


def small_file(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """A recording of several flushes: its bytes, and (size, samples) after each."""
    ends = []
    with RecordingWriter(path, META) as writer:
        for number, one in enumerate(shop(6), 1):
            writer.add(one)
            if number % 3 == 0:
                writer.flush()
                ends.append((path.stat().st_size, number))
    return path.read_bytes(), ends


def test_cut_at_every_byte(path: Path, tmp_path: Path) -> None:
    data, ends = small_file(path)
    whole = plain(shop(6))
    cut = tmp_path / "cut"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size < b.FILE_HEADER_SIZE:
            with pytest.raises(BadRecording):
                Recording(cut)
            continue
        recording = Recording(cut)
        found = plain(recording)
        assert found == whole[: len(found)]
        assert len(found) >= max((n for end, n in ends if end <= size), default=0)
        assert not recording.is_complete
        end = recording.statistics.ended_ns
        assert recording.statistics.incomplete == Incomplete("cut off", end)


def test_any_byte_changed(path: Path, tmp_path: Path) -> None:
    data, _ = small_file(path)
    whole = plain(shop(6))
    bad = tmp_path / "bad"
    for place in range(b.FILE_HEADER_SIZE, len(data)):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        recording = Recording(bad)
        found = plain(recording)
        assert found == whole[: len(found)]
        assert recording.statistics.incomplete
        assert not recording.is_complete


KILLED = """
import os, sys
sys.path[:0] = sys.argv[2:]
from sample_makers import shop
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.recording.sample_recording import RecordingWriter
writer = RecordingWriter(sys.argv[1], Meta())
for number, one in enumerate(shop(10**9)):
    writer.add(one)
    if number == 100_000:
        os.write(1, b"ready\\n")
"""


def test_kill_9(path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    places = [str(root), str(root.parent / "tracer")]
    command = [sys.executable, "-c", KILLED, str(path), *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"ready\n"
        writer.send_signal(signal.SIGKILL)
    recording = Recording(path)
    found = plain(recording)
    assert len(found) > 99_000
    assert found == plain(s for s, _ in zip(shop(10**9), found, strict=False))
    assert not recording.is_complete
    end = recording.statistics.ended_ns
    assert recording.statistics.incomplete == Incomplete("cut off", end)


def test_a_wrong_size_is_damage(path: Path) -> None:
    """A block seems to reach beyond the end, but another block follows."""
    data, _ = small_file(path)
    head = bytearray(data)
    head[b.FILE_HEADER_SIZE + 10] ^= 1  # 65,536 bytes more
    path.write_bytes(head)
    recording = Recording(path)
    assert list(recording) == []
    assert damage_of(recording) == "the last block is incomplete"
    path.write_bytes(data + b"\0\0\0")
    recording = Recording(path)
    assert plain(recording) == plain(shop(6))
    assert damage_of(recording) == "something that is not a block"


def test_it_is_read_while_it_is_written(path: Path) -> None:
    """Data that does not exist yet is not missing."""
    with RecordingWriter(path, META) as writer:
        writer.add(sample("a"))
        writer.flush()
        recording = Recording(path)
        assert plain(recording) == plain([sample("a")])
        assert recording.is_written
        with path.open("ab") as file:
            file.write(b"rblk")  # the beginning of a block
        assert plain(recording) == plain([sample("a")])
        assert (recording.is_complete, recording.statistics.incomplete) == (False, None)
    assert not Recording(path).is_written


# ---------------------------------------------------------------- versions


def test_no_recording(path: Path) -> None:
    for data in (b"", b"hello", b"\x89RBTREC\n", b"\x7fELF" + bytes(100)):
        path.write_bytes(data)
        with pytest.raises(BadRecording, match="is not a recording"):
            Recording(path)


def test_a_newer_major_version_is_refused(path: Path) -> None:
    write(path, shop(1))
    data = bytearray(path.read_bytes())
    data[8:10] = struct.pack("<H", b.MAJOR + 1)
    path.write_bytes(data)
    with pytest.raises(BadRecording, match=r"of version 2\.0; .* reads version 1"):
        Recording(path)
    with pytest.raises(BadRecording, match="of version"):
        write(path, shop(1), append=True)


def test_a_newer_minor_version_is_read(path: Path) -> None:
    write(path, shop(2))
    data = bytearray(path.read_bytes())
    data[10:12] = struct.pack("<H", b.MINOR + 7)
    path.write_bytes(bytes(data) + block(99, b"what nobody knows"))
    recording = Recording(path)
    assert plain(recording) == plain(shop(2))
    assert damage_of(recording) == ""


def test_unknown_blocks_are_skipped(path: Path) -> None:
    write(path, shop(2))
    data = path.read_bytes()
    at = b.FILE_HEADER_SIZE
    strange = block(200, os.urandom(500)) + block(BlockType.CALLS, b"") + block(0, b"")
    path.write_bytes(data[:at] + strange + data[at:] + strange)
    assert plain(Recording(path)) == plain(shop(2))
    assert Recording(path).meta == META


# ----------------------------------------------------------------- hostile


def from_blocks(path: Path, *parts: tuple[int, bytes]) -> Recording:
    path.write_bytes(file_header() + b"".join(block(k, p) for k, p in parts))
    return Recording(path)


HOSTILE = [
    (BlockType.META, b"[" * 900_000),
    (BlockType.META, b"9" * 1_000_000),
    (BlockType.META, b"{}" + b" " * (2 << 20)),
    (BlockType.META, b"\xff\xfe"),
    (BlockType.STRINGS, b"\xff\xff\xff\xff"),
    (BlockType.STRINGS, pack_columns("I", [[5]]) + b"four"),
    (BlockType.STRINGS, pack_columns("I", [[2**32 - 1] * 10])),
    (BlockType.FRAMES, pack_columns("BIIII", [[0], [0], [1], [0], [0]])),
    (BlockType.STACKS, pack_columns("II", [[0], [0]])),
    (BlockType.STACKS, pack_columns("II", [[2], [0]])),
    (BlockType.STACKS, pack_columns("II", [[1], [9]])),
    (BlockType.THREADS, pack_columns("IIQIIB", [[1], [1], [1], [9], [1], [1]])),
    (BlockType.SAMPLES, pack_columns("qIIBBQQ", [[1], [9], [0], [0], [0], [0], [0]])),
    (BlockType.SAMPLES, b"\0"),
    (BlockType.LOSSES, b'{"ended_ns": 1e400, "counters": 3'),
]


@pytest.mark.parametrize(("kind", "payload"), HOSTILE)
def test_lies_end_the_reading(path: Path, kind: int, payload: bytes) -> None:
    recording = from_blocks(path, (kind, payload))
    assert list(recording) == []
    assert damage_of(recording)


def test_a_time_that_no_calendar_has(path: Path) -> None:
    """The time at which a recording is cut off may be any number."""
    rows = [[(1 << 63) - 1], *[[0]] * 6]
    recording = from_blocks(path, (BlockType.SAMPLES, pack_columns("qIIBBQQ", rows)))
    list(recording)
    losses = b'{"ended_ns": 9223372036854775807}'
    recording = from_blocks(path, (BlockType.LOSSES, losses))
    assert list(recording) == []
    assert "cut off at " in str(recording.statistics.incomplete)
    assert "cut off at 9999-" in str(Incomplete("cut off", 1 << 80))


def test_meta_of_wrong_types_is_left_out(path: Path) -> None:
    meta = b'{"unit": 3, "rate": "x", "pids": ["a", 1, -1, true], "mode": "a\\u001b"}'
    assert from_blocks(path, (BlockType.META, meta)).meta == Meta(
        pids=(1,), mode="a\\u001b"
    )


def test_a_bomb_takes_no_more_than_a_block(path: Path) -> None:
    stored = zlib.compress(bytes(1 << 27), 9)
    head = struct.Struct("<4sBBHIII")
    fields = (b"rblk", BlockType.STRINGS, 1, 0, len(stored), b.MAX_BLOCK)
    check = zlib.crc32(stored, zlib.crc32(head.pack(*fields, 0)))
    path.write_bytes(file_header() + head.pack(*fields, check) + stored)
    tracemalloc.start()
    assert list(Recording(path)) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * b.MAX_BLOCK


def test_a_chain_that_is_too_deep(path: Path) -> None:
    chain = pack_columns("II", [[1] * (MAX_DEPTH + 1), [0] * (MAX_DEPTH + 1)])
    recording = from_blocks(
        path,
        (BlockType.STRINGS, pack_columns("I", [[1]]) + b"a"),
        (BlockType.FRAMES, pack_columns("BIIII", [[0], [0], [0], [0], [0]])),
        (BlockType.STACKS, chain),
    )
    assert list(recording) == []
    assert damage_of(recording) == "a stack that is too deep"


def test_tables_without_end(path: Path) -> None:
    lengths = pack_columns("I", [[0] * 1_000_000])
    recording = from_blocks(path, *[(BlockType.STRINGS, lengths)] * 5)
    assert list(recording) == []
    assert damage_of(recording) == "a table that is too large"


PAYLOADS = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda codes, numbers, rest: pack_columns(codes, [numbers] * len(codes)) + rest,
        st.sampled_from(["I", "II", "BIIII", "IIQIIB", "qIIBBQQ"]),
        st.lists(st.integers(0, 3) | st.integers(0, 2**64 - 1), max_size=5),
        st.binary(max_size=20),
    ),
)
BLOCKS = st.lists(st.tuples(st.integers(0, 11), PAYLOADS), max_size=12)


@settings(
    max_examples=2000 if os.environ.get("RBTRACE_SOAK") else 300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(BLOCKS, st.binary(max_size=40))
def test_any_blocks_are_read_or_refused(
    path: Path, parts: list[tuple[int, bytes]], rest: bytes
) -> None:
    found = from_blocks(path, *parts)
    path.write_bytes(path.read_bytes() + rest)
    for one in found:
        assert isinstance(one, Sample)
        assert all(f.name.isprintable() for f in one.stack.frames)


def test_any_bytes_behind_the_header(path: Path) -> None:
    noise = random.Random(7)
    write(path, shop(20))
    data = path.read_bytes()
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(noise.randrange(1, 8)):
            changed[noise.randrange(16, len(data))] = noise.randrange(256)
        path.write_bytes(changed)
        found = plain(Recording(path))
        assert found == plain(shop(20))[: len(found)]


def test_a_thread_is_written_once(path: Path) -> None:
    names = [sample("a", thread=MAIN, at=n) for n in range(100)]
    write(path, names)
    assert len({id(s.thread) for s in Recording(path)}) == 1
