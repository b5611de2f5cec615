"""Stacks read from outside equal those that the thread itself writes.

The thread stops at random points in all kinds of frames, writes its
``caller_locations``, and waits. Then its stack is read.
"""

from __future__ import annotations

import re
import time
from bisect import bisect
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import builds
import pytest
import tally

import rubies
from processes import comes_true
from rbtrace_py.model.stacks import Frame, FrameKind, Stack
from rbtrace_py.rubyvm.vm import RubyVM, Walked
from ruby_builds import Build, each_build

SEED = 4711
Place = tuple[str, str, str]
"""Path, line, and label of a frame, as Ruby reports them."""


@each_build
@pytest.mark.timeout(900)
def test_places(build: Build) -> None:
    found = tally.tally("places", build)
    count = builds.stops(build)
    with builds.running(
        build, "stacks/truth_places.rb", count * 5 // 4, SEED
    ) as process:
        stopped = Stopped(process)
        while (line := stopped.line()) != "done":
            stopped.compare(line, found)
            process.target.tell()
    assert found.stops >= count
    found.check()


class Stopped:
    """The target, which waits for a line each time it has stopped."""

    def __init__(self, process: rubies.Running) -> None:
        self._process = process
        names = process.ready.removeprefix("ready ").split("\x1e")
        self._names = Names(name.split("\t") for name in names)
        self._vm: RubyVM | None = None
        self._thread = 0
        self._checked = time.monotonic()

    def line(self) -> str:
        """Return its next answer."""
        assert self._process.target.process.stdout
        line = self._process.target.process.stdout.readline().rstrip("\n")
        assert line, "the target has ended"
        return str(line)

    def compare(self, line: str, found: tally.Tally) -> None:
        self._wait_for_read()
        if time.monotonic() > self._checked + 1:  # as often as a sampler does
            self._checked = time.monotonic()
            self.vm.revalidate()
        truth = [tuple(frame.split("\t")) for frame in line.split("\x1e")]
        walked = self._walk()
        if walked is None or walked.flags:
            ends = walked and places(walked.stack)[:2]
            found.flags.append(f"innermost {ends}\nRuby {truth}")
            return
        ours = places(walked.stack)
        found.in_jit += self._has_jit_frame()
        wrong = difference(ours, truth) or self._names.wrong(walked.stack)
        if wrong:
            found.differences.append(f"{wrong}\nours {ours}\nRuby {truth}")
        else:
            found.same += 1

    @property
    def vm(self) -> RubyVM:
        if self._vm is None:
            self._vm = self._process.vm()
        return self._vm

    def _wait_for_read(self) -> None:
        """Wait until it reads a line: until all its threads are in system calls.

        A Ractor's thread may have no kernel thread while it waits.
        """
        rests: deque[bool] = deque(maxlen=3)

        def is_so() -> bool:
            rests.append(is_at_rest(self._process.pid))
            return rests.count(True) == 3

        assert comes_true(is_so, pause=0.0002), "it does not come to rest"

    def _walk(self) -> Walked | None:
        """Return the stack of the only thread in ``Go.last``."""
        found = []
        for thread in self.vm.threads():
            walked = self.vm.sample(thread)
            if walked is not None and stands(walked.stack):
                self._thread = thread.address
                found.append(walked)
        assert len(found) <= 1
        return found[0] if found else None

    def _has_jit_frame(self) -> bool:
        """Return whether a JIT called one of its frames of Ruby code."""
        offsets = self.vm.layout.offsets
        if offsets.cfp_jit_return is None:
            return False
        words = memoryview(self.vm._tracks[self._thread].frames).cast("Q")
        size = offsets.cfp_size // 8
        iseqs = words[offsets.cfp_iseq // 8 :: size]
        returns = words[offsets.cfp_jit_return // 8 :: size]
        return any(map(all, zip(iseqs, returns, strict=True)))


class Names:
    """Qualified names of the methods of truth_kinds.rb, by their first lines."""

    def __init__(self, rows: Iterable[list[str]]) -> None:
        self._by_line: dict[int, dict[str, str]] = {}
        for line, name, qualified in rows:
            self._by_line.setdefault(int(line), {})[name] = qualified
        self._lines = sorted(self._by_line)

    def wrong(self, stack: Stack) -> str | None:
        """Return an error if a frame's name does not have its method's owner."""
        for frame in stack.frames:
            expected = self._expected(frame)
            if expected and frame.name.rpartition(" in ")[2] != expected:
                return f"the name {frame.name} should be {expected}"
        return None

    def _expected(self, frame: Frame) -> str | None:
        if not frame.path.endswith("stacks/truth_kinds.rb") or frame.line is None:
            return None
        begun = bisect(self._lines, frame.line)
        name = re.sub(r".*(?: in |[#.](?=\w))", "", frame.label)
        return self._by_line[self._lines[begun - 1]].get(name) if begun else None


def is_at_rest(pid: int) -> bool:
    """Return whether each thread of the process is in a system call that blocks."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "syscall").read_text().startswith("running"):
                return False
        except OSError:
            continue
    return True


def stands(stack: Stack) -> bool:
    """Return whether the newest frame is ``Go.last``, apart from C functions."""
    names = [frame.label for frame in stack.frames if frame.kind is FrameKind.RUBY]
    return bool(names) and names[-1] in ("last", "Go.last")


def places(stack: Stack) -> list[Place]:
    """Return its frames as Ruby reports them, newest first, from ``Go.last`` on.

    For a C function without a caller, Ruby reports a nil path and line 0.
    """
    frames = list(reversed(stack.frames))
    while frames and frames[0].kind is FrameKind.C:
        del frames[0]
    return [
        (frame.path, str(frame.line if frame.path else 0), frame.label)
        for frame in frames
    ]


def difference(ours: list[Place], truth: list[tuple[str, ...]]) -> str | None:
    if len(ours) != len(truth):
        return f"{len(ours)} frames, not {len(truth)}"
    for number, (mine, real) in enumerate(zip(ours, truth, strict=True)):
        if mine != real:
            return f"frame {number} is {mine}, not {real}"
    return None
