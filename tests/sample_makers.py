"""Synthetic samples for tests of sample processing."""

from __future__ import annotations

from collections.abc import Iterator

from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.sample_recording import Recording

START = 1_700_000_000 * 10**9
STEP = 10_000_000
KINDS = {
    "c": FrameKind.C,
    "n": FrameKind.NATIVE,
    "g": FrameKind.GC,
    "k": FrameKind.KERNEL,
    "m": FrameKind.MARKER,
}

MAIN = RubyThread(4211, 4211, 0x7F0001, "", is_main=True)
WORKER = RubyThread(4211, 4213, 0x7F0002, "worker 1")
OTHER_PROCESS = RubyThread(4300, None, 0x7F0003, "", ractor=2)


def damage_of(recording: Recording | CallsRecording) -> str:
    """Return the damage of a recording, or an empty string if there is none."""
    found = recording.statistics.incomplete
    return found.detail if found and found.reason == "damaged" else ""


def frame(text: str) -> Frame:
    """Return a frame for ``name@path:line``, or of another kind: ``c!name``, ``g!``,
    ``k!`` …"""
    mark, _, rest = text.rpartition("!")
    name, _, place = rest.partition("@")
    path, _, line = place.partition(":")
    kind = KINDS.get(mark, FrameKind.RUBY)
    return Frame(kind, name, name.rpartition("#")[2], path, int(line) if line else None)


def stack(*texts: str) -> Stack:
    return Stack(tuple(map(frame, texts)))


def sample(
    *texts: str,
    at: int = 0,
    thread: RubyThread = MAIN,
    state: ThreadState = ThreadState.RUNNING,
    weight: int = 1,
    flags: SampleFlags = SampleFlags.CLEAN,
    fiber: int = 0,
) -> Sample:
    """Return a sample taken ``at`` rounds after the start."""
    when = START + at * STEP
    return Sample(when, thread, state, stack(*texts), weight, flags, fiber)


_MAIN = "<main>@/app/shop.rb:30"
_SERVE = "Shop#serve@/app/shop.rb"
SHOP = (
    (_MAIN, f"{_SERVE}:5", "Order#total@/app/order.rb:9"),
    (_MAIN, f"{_SERVE}:6", "c!Array#sum@/app/shop.rb:6"),
    (_MAIN, f"{_SERVE}:5", "Order#total@/app/order.rb:10"),
    ("<main>@/app/shop.rb:31", "g!(garbage collection)"),
)


def shop(rounds: int = 10) -> Iterator[Sample]:
    """Return samples of two threads of a small shop and one of another process, 4
    per round."""
    for at in range(rounds):
        yield sample(*SHOP[at % 4], at=at)
        yield sample(
            *SHOP[0], at=at, thread=WORKER, state=ThreadState.WAITING, weight=2
        )
        yield sample(
            "<main>@/app/shop.rb:30",
            "c!Kernel#sleep@/app/shop.rb:30",
            at=at,
            thread=OTHER_PROCESS,
            state=ThreadState.SLEEPING,
            flags=SampleFlags.TRIMMED if at % 2 else SampleFlags.CLEAN,
            fiber=0xFFFF_0000_1234,
        )
        yield sample(
            "fib@/app/fib.rb:1",
            *["fib@/app/fib.rb:2"] * (at % 7),
            at=at,
            thread=WORKER,
            flags=SampleFlags.TRUNCATED,
        )
