"""Stacks that the kernel walks at a switch off a CPU equal those that Ruby reports.

A busy thread is stopped by ptrace at any instruction. The kernel's program walks its
stack at the switch into the stop. The stack read from memory during the stop is first
verified with ``rb_profile_frames``, and then both are compared. The target frees no
code, because names are read later.
"""

from __future__ import annotations

import random
import re
import time
from bisect import bisect_left
from contextlib import closing
from itertools import zip_longest

import builds
import pytest
import tally
from test_instructions import LONGEST_RUN, SEED, Busy

from rbtrace_py.linux import clocks
from rbtrace_py.model.stacks import Frame, FrameKind, Sample
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import sampling_passes
from rbtrace_py.session.targets.targets import Targets
from ruby_builds import Build, each_build

OPTIONS = SamplingOptions(mode=SamplingMode.OFFCPU, engine=EngineChoice.BPF, each=True)


@pytest.mark.root
@each_build
@pytest.mark.timeout(900)
def test_switches(build: Build, root: None) -> None:
    found, memory = tally.tally("switches", build), tally.Tally("", build)
    chance = random.Random(SEED)
    samples: list[Sample] = []
    with (
        builds.running(build, "stacks/truth_busy.rb", SEED, "keep") as process,
        closing(Targets.from_pids([process.pid])) as targets,
        Sampling(targets, OPTIONS) as sampling,
    ):
        wall_offset = clocks.wall_offset()
        passes = sampling_passes(sampling, samples.append)
        target = Busy(process)
        for _ in range(builds.stops(build)):
            passes.advance(time.monotonic() + chance.random() * LONGEST_RUN, None)
            target.compare(memory)
        target.thread.close()
        passes.finish()
    samples.sort(key=lambda one: one.time_ns)
    for at, frames in target.true:
        compare(found, at + wall_offset, frames, samples)
    assert not memory.differences, memory.differences[0]
    # The true stack is unknown there.
    found.flags += memory.flags
    found.crashed += memory.crashed
    assert found.stops == builds.stops(build)
    found.check()


def compare(
    found: tally.Tally, at: int, frames: tuple[Frame, ...], samples: list[Sample]
) -> None:
    """Compare the true frames at a time with the off-CPU sample that includes it.

    ``samples`` are the samples of one thread, by time.
    """
    first = bisect_left(samples, at, key=lambda one: one.time_ns)
    meant = [
        one for one in samples[first : first + 1] if one.time_ns - one.weight <= at
    ]
    if not meant or meant[0].flags:
        found.flags.append(f"{[one.flags for one in meant]} at {at}")
        return
    (sample,) = meant
    *walked, marker = sample.stack.frames
    assert marker.kind is FrameKind.MARKER  # the reason of the wait
    wrong = [pair for pair in zip_longest(walked, frames) if not is_same(*pair)]
    if wrong:
        lines = [f"  {ours}, not {real}" for ours, real in wrong[-4:]]
        found.differences.append("\n".join([f"{len(wrong)} frames:", *lines]))
    else:
        found.same += 1


def is_same(ours: Frame | None, real: Frame | None) -> bool:
    """Return whether two frames are equal. Their names may differ by an owner that no
    longer exists when names are read, such as an object."""
    if ours is None or real is None:
        return False
    places = [(one.kind, one.path, one.line) for one in (ours, real)]
    is_own = "#<" in real.name and bare(ours.name) == bare(real.name)
    is_named = is_own or ours.name in (real.name, bare(real.name))
    return places[0] == places[1] and is_named


def bare(name: str) -> str:
    """Return ``block in pay`` for ``block in Till#pay``."""
    return re.sub(r"\S+[#.](?=\S+$)", "", name)
