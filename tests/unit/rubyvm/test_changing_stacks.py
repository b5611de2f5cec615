"""Samples of stacks that change while they are read.

The tests change the probes of a recording, as a running program does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rbtrace_py.linux.memory import Memory
from rbtrace_py.model.stacks import CHANGED, Frame, SampleFlags
from rbtrace_py.rubyvm import unwinder
from rbtrace_py.rubyvm.unwinder import Track
from rbtrace_py.rubyvm.vm import RubyVM, Walked
from replays import replay

FRAMES = (*unwinder._FRAMES, unwinder._REST)
"""Parts of a gather that have frames, by time."""


class ChangingMemory:
    """Passes gathers of a whole stack through ``change``, part by part."""

    def __init__(self, inner: Memory) -> None:
        self._inner = inner
        self.gathers = 0
        self.change: Callable[[int, bytearray], None] = lambda part, data: None

    def read(self, address: int, size: int) -> bytes:
        return self._inner.read(address, size)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = [bytearray(data) for data in self._inner.gather(ranges)]
        self.gathers += 1
        if len(found) > unwinder._REST:
            for part, data in enumerate(found):
                self.change(part, data)
        return [bytes(data) for data in found]


class Changing:
    """The thread ``c functions`` of Ruby 3.1, whose newest frame is Queue#pop."""

    def __init__(self) -> None:
        found = replay("3.1")
        self.memory = ChangingMemory(found.memory)
        self.vm = RubyVM(self.memory, found.layout, found.vm, found.symbols)
        threads = self.vm.threads()
        self.thread = next(one for one in threads if one.name == "c functions")
        self.offsets = found.layout.offsets
        self.frames = self.sample().stack.frames
        self.memory.gathers = 0

    @property
    def track(self) -> Track:
        return self.vm._tracks[self.thread.address]

    def sample(self) -> Walked:
        walked = self.vm.sample(self.thread)
        assert walked is not None
        return walked

    def place(self, part: int, depth: int) -> int:
        """Return the offset in a part of the frame with ``depth`` newer frames."""
        track, size = self.track, self.offsets.cfp_size
        start = track.frames_at if part == unwinder._REST else track.probe_at
        return track.high - (len(track.nodes) - depth) * size - start

    def replace(self, depth: int, parts: Sequence[int]) -> None:
        """Put other objects' frames at a depth into some parts, new ones each time."""
        places = {
            part: self.place(part, depth) + self.offsets.cfp_self for part in parts
        }

        def change(part: int, data: bytearray) -> None:
            if part in places:
                data[places[part] + 1] ^= self.memory.gathers & 0xFF
                data[places[part]] ^= 8

        self.memory.change = change

    def shown(self) -> tuple[tuple[Frame, ...], SampleFlags]:
        walked = self.sample()
        return walked.stack.frames, walked.flags


@pytest.fixture
def changing() -> Changing:
    return Changing()


def test_an_unchanged_stack_is_clean_and_read_once(changing: Changing) -> None:
    changing.track.parts = []
    assert changing.shown() == (changing.frames, SampleFlags.CLEAN)
    assert changing.memory.gathers == 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_frames_that_alternate_are_a_marker(changing: Changing, depth: int) -> None:
    changing.replace(depth, FRAMES[1::2])
    callers = changing.frames[: len(changing.frames) - 1 - depth]
    assert changing.shown() == ((*callers, CHANGED), SampleFlags.TRIMMED)
    assert changing.vm.counts.trimmed == 1
    assert changing.vm.counts.failed == 0


def test_control_frames_are_those_that_are_shown(changing: Changing) -> None:
    assert len(changing.vm.control_frames(changing.thread)) == len(changing.track.nodes)
    whole = changing.vm.control_frames(changing.thread)
    changing.replace(1, FRAMES[1::2])
    changing.sample()
    known = changing.vm.control_frames(changing.thread)
    assert [(one.node, one.ep) for one in known] == [
        (one.node, one.ep) for one in whole[2:]
    ]


@pytest.mark.parametrize("first", range(1, len(FRAMES)))
def test_a_frame_that_changed_once_is_the_one_before(
    changing: Changing, first: int
) -> None:
    """A slow method ended after the sampled moment, and another one began."""
    changing.replace(0, FRAMES[first:])
    assert changing.shown() == (changing.frames, SampleFlags.CLEAN)


def test_a_frame_that_lasts_is_known_whatever_follows(changing: Changing) -> None:
    """Two probes and the frame pointer between them prove it."""
    changing.replace(0, FRAMES[2::2])
    assert changing.shown() == (changing.frames, SampleFlags.CLEAN)


def test_a_frame_that_was_popped_between_two_probes(changing: Changing) -> None:
    """Equal frames prove nothing if other frames were there, too."""
    changing.replace(0, FRAMES[2::2])
    others, size = changing.memory.change, changing.offsets.cfp_size

    def change(part: int, data: bytearray) -> None:
        others(part, data)
        if part == unwinder._POINTER:
            data[:] = (int.from_bytes(data, "little") + size).to_bytes(8, "little")

    changing.memory.change = change
    assert changing.shown() == (
        (*changing.frames[:-1], CHANGED),
        SampleFlags.TRIMMED,
    )


def test_a_deeper_frame_later_leaves_the_newest_one(changing: Changing) -> None:
    """The sampled moment is the first read of the frame pointer."""
    size = changing.offsets.cfp_size

    def change(part: int, data: bytearray) -> None:
        if part == unwinder._POINTER:
            data[:] = (int.from_bytes(data, "little") - size).to_bytes(8, "little")

    changing.memory.change = change
    assert changing.shown() == (changing.frames, SampleFlags.CLEAN)


def test_a_stack_of_which_nothing_is_known_is_a_marker_alone(
    changing: Changing,
) -> None:
    changing.replace(len(changing.track.nodes) - 1, FRAMES[1::2])
    assert changing.shown() == ((CHANGED,), SampleFlags.TRIMMED)


def test_a_thread_at_rest_is_believed_after_two_equal_readings(
    changing: Changing,
) -> None:
    places = {part: changing.place(part, 0) for part in FRAMES[1::2]}

    def change(part: int, data: bytearray) -> None:
        if part in places:
            data[places[part] + changing.offsets.cfp_self] ^= 8

    changing.memory.change = change
    assert changing.shown() == (changing.frames, SampleFlags.CLEAN)
    assert changing.memory.gathers == 2
