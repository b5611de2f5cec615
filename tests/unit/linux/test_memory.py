"""Memory of a process, and recordings of its reads."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.errors import (
    BadRecording,
    NoSuchTarget,
    NotPermitted,
    UnreadableMemory,
)
from rbtrace_py.linux.memory import LARGEST_READ, ProcessMemory
from recorded_memory import RecordingMemory, ReplayMemory

CONTENTS = random.Random(1).randbytes(200_000)
KEPT = ctypes.create_string_buffer(CONTENTS, len(CONTENTS))
START = ctypes.addressof(KEPT)


@pytest.fixture
def memory() -> ProcessMemory:
    return ProcessMemory(os.getpid())


def part(place: int, size: int) -> bytes:
    return CONTENTS[place : place + size]


def test_reads_what_is_there(memory: ProcessMemory) -> None:
    assert memory.read(START, 16) == part(0, 16)
    assert memory.read(START + 5, 150_000) == part(5, 150_000)
    assert memory.read(START, 0) == b""


def test_gathers_in_order(memory: ProcessMemory) -> None:
    places = [(9, 3), (0, 70_000), (9, 3), (100, 0), (1, 1)]
    ranges = [(START + place, size) for place, size in places]
    expected = [part(place, size) for place, size in places]
    for _ in range(3):
        assert memory.gather(ranges) == expected
    ranges[0] = (START, 5)
    assert memory.gather(ranges) == [part(0, 5), *expected[1:]]
    assert memory.gather([]) == []


def test_the_buffer_grows_under_ranges_that_are_kept(memory: ProcessMemory) -> None:
    ranges = [(START, 8), (START + 8, 8)]
    assert memory.gather(ranges) == [part(0, 8), part(8, 8)]
    assert memory.read(START, 190_000) == part(0, 190_000)
    assert memory.gather(ranges) == [part(0, 8), part(8, 8)]


@pytest.mark.parametrize("address", [0, 8, 1 << 47, (1 << 64) - 8, 1 << 64, -8])
def test_unmapped_memory_is_unreadable(memory: ProcessMemory, address: int) -> None:
    with pytest.raises(UnreadableMemory):
        memory.read(address, 8)
    with pytest.raises(UnreadableMemory):
        memory.gather([(START, 8), (address, 8)])


@pytest.mark.parametrize("size", [-1, LARGEST_READ + 1, 1 << 64])
def test_sizes_are_bounded(memory: ProcessMemory, size: int) -> None:
    with pytest.raises(UnreadableMemory):
        memory.read(START, size)


def test_places_are_bounded(memory: ProcessMemory) -> None:
    assert len(memory.gather([(START, 1)] * 1024)) == 1024
    with pytest.raises(UnreadableMemory):
        memory.gather([(START, 1)] * 1025)


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    with pytest.raises(NoSuchTarget, match=str(process.pid)):
        ProcessMemory(process.pid).read(4096, 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_process_of_another_user_says_which_knob() -> None:
    reader = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.errors import NotPermitted
memory = ProcessMemory({os.getpid()})
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    memory.read(4096, 8)
except NotPermitted as error:
    print(error, "|", error.hint)
"""
    said = subprocess.run(
        [sys.executable, "-c", reader], capture_output=True, text=True
    )
    assert said.stdout == (
        f"not allowed to read the memory of process {os.getpid()}: it belongs to user"
        " root | Run as root, or with CAP_SYS_PTRACE\n"
    ), said.stderr
    assert NotPermitted.exit_code == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 190_000), st.integers(1, 9_000)),
        min_size=1,
        max_size=9,
    )
)
def test_a_recording_gives_what_was_read(places: list[tuple[int, int]]) -> None:
    memory = RecordingMemory(ProcessMemory(os.getpid()))
    ranges = [(START + place, size) for place, size in places]
    read = memory.gather(ranges)
    replay = ReplayMemory(memory.dump())
    assert replay.gather(ranges) == read
    assert [replay.read(*pair) for pair in ranges] == read


def test_a_recording_has_nothing_else() -> None:
    memory = RecordingMemory(ProcessMemory(os.getpid()))
    memory.read(START + 100, 100)
    replay = ReplayMemory(memory.dump())
    assert replay.read(START + 150, 50) == part(150, 50)
    for address, size in [(START + 99, 1), (START + 150, 51), (START, 8), (0, 1)]:
        with pytest.raises(UnreadableMemory):
            replay.read(address, size)


def test_damaged_recordings_are_refused() -> None:
    memory = RecordingMemory(ProcessMemory(os.getpid()))
    memory.read(START, 5000)
    whole = memory.dump()
    for length in range(0, len(whole), 97):
        with pytest.raises(BadRecording):
            ReplayMemory(whole[:length])
    magic = whole[: whole.index(b"\n") + 1]
    for body in (b"x", b"\0" * 12 + b"short", b"\0" * 8 + b"\xff" * 4):
        with pytest.raises(BadRecording):
            ReplayMemory(magic + zlib.compress(body))
