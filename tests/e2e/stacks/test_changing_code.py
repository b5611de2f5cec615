"""Code that is loaded and freed keeps its own names, at whatever addresses it is.

The target reports which method ran when, so the time of a sample identifies its method.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from commands import Tracer
from processes import TARGETS, Target, read_line
from rbtrace_py.linux import clocks
from rbtrace_py.model.stacks import Frame, Sample, SampleFlags
from rbtrace_py.recording.sample_recording import Recording
from ruby_builds import Build, each_build

RATE = 999
NEARLY = 500_000
"""Tolerance in ns: between a method's first frame and the target's clock reading, and
between two clock readings. A collection between two methods takes longer."""
UNTIL_SEEN = 500_000_000
TRACE = Callable[..., Tracer]

pytestmark = pytest.mark.usefixtures("root")


class Changes:
    """The method that ran at each time, and the samples since half a second after the
    start. Before that, a change may go unnoticed.

    ``kinds`` counts the samples. ``right`` names the method that ran, ``wrong`` names
    another one, and ``mixed`` has the name of one with the line of another.
    ``unresolved`` and ``trimmed`` are set by the samples' flags. ``none`` has no method
    at all, because the target lost its CPU between a clock reading and the call.
    """

    def __init__(self, target: Target, wall_offset: int, samples: Iterator[Sample]):
        self._ran: list[list[int]] = json.loads(target.step("changes"))
        assert read_line(target.process.stdout) == "done"
        self._begun = [began for _, began, _ in self._ran]
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, list[object]] = {}
        for sample in samples:
            at = sample.time_ns - wall_offset
            number = self._at(at)
            if number and at > self._begun[0] + UNTIL_SEEN:
                kind = kind_of(sample, number)
                self.kinds[kind] += 1
                self.examples.setdefault(kind, []).append(
                    (number, sample.stack.frames[-4:])
                )

    def _at(self, at: int) -> int:
        """Return the number of the method that ran at a time, or 0 near a change."""
        place = bisect(self._begun, at) - 1
        number, began, ended = self._ran[max(place, 0)]
        return number if began + NEARLY < at < ended - NEARLY else 0


def kind_of(sample: Sample, number: int) -> str:
    flags = sample.flags
    found = {one for frame in sample.stack.frames for one in numbers(frame)}
    if len(found) > 1:
        return "mixed"
    if found:
        return "right" if found == {number} else "wrong"
    if SampleFlags.UNRESOLVED in flags:
        return "unresolved"
    return "trimmed" if SampleFlags.TRIMMED in flags else "none"


def numbers(frame: Frame) -> list[int]:
    """Return the numbers in a frame's name and line, which are equal if both are of one
    method. JIT frames have no line."""
    found = re.findall(r"changed_(\d+)", f"{frame.name} {frame.path}")
    if found and frame.line is not None:
        found.append(str(frame.line))
    return [int(one) for one in found]


def changing(build: Build, step: str, trace: TRACE, tmp_path: Path) -> Changes:
    words = (*build.words(), "-W0", TARGETS / "stacks/walked.rb")
    path = tmp_path / "out.rbrec"
    options = ("--mode", "cpu", "--engine", "bpf", "-r", RATE, "-o", path)
    with closing(Target(*words)) as target:
        tracer = trace("record", target.ready.split()[1], *options)
        wall_offset = clocks.wall_offset()
        assert target.step(step) == "done"
        _, err, code = tracer.finish()
        assert code == 0, err
        return Changes(target, wall_offset, iter(Recording(path)))


@each_build
@pytest.mark.parametrize("compacts", [0, 10])
def test_code_that_is_gone_soon(
    build: Build, compacts: int, trace: TRACE, tmp_path: Path
) -> None:
    """Many methods are freed before their names are read, 20 ms later.

    No sample is counted for code that was at the same addresses before or after.
    """
    found = changing(build, f"changing 2.0 0.002 {compacts}", trace, tmp_path)
    kinds = found.kinds
    assert not kinds["mixed"], found.examples["mixed"]
    assert kinds["none"] <= 5, found.examples["none"]
    assert kinds["right"] + kinds["unresolved"]  # which, depends on the machine's load
    assert not kinds["wrong"], found.examples["wrong"]
    assert kinds["trimmed"] <= 0.04 * kinds.total()


@each_build
def test_code_that_stays_for_a_while(
    build: Build, trace: TRACE, tmp_path: Path
) -> None:
    """Each stack of the code is named, unless it is seen only at the code's end."""
    found = changing(build, "changing 3.0 0.2 5", trace, tmp_path)
    assert not found.kinds["mixed"] + found.kinds["wrong"], found.examples
    assert found.kinds["right"] >= 0.5 * found.kinds.total()
