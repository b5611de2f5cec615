"""Stacks that are read at a probe equal those that the thread has just written.

Ractors are not tested: the gem's probes belong to the main one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import builds
import pytest
import tally
from test_places import SEED, difference, places

from commands import Tracer
from processes import LIB, TARGETS, Target
from rbtrace_py.recording.sample_recording import Recording
from ruby_builds import Build, build_gem, each_build

pytestmark = pytest.mark.usefixtures("root")


@each_build
@pytest.mark.timeout(900)
def test_events(build: Build, trace: Callable[..., Tracer], tmp_path: Path) -> None:
    words = [*build.words(), "-W0", "-I", LIB, TARGETS / "stacks/truth_events.rb"]
    build_gem(build)
    count, written = builds.STOPS or 1000, tmp_path / "written"
    plans = count * 5 // 4  # some end before they fire
    with closing(Target(*words, plans, SEED, written, env={"RUBYOPT": ""})) as target:
        recording = tmp_path / "out.rbrec"
        options = ("--on", "truth:here", "--weight", "number", "-o", recording)
        tracer = trace("stacks", target.ready.split()[1], *options)
        assert target.step() == "done"
        _, err, code = tracer.finish()
        assert code == 0, err
    found = tally.tally("events", build)
    truth = [
        [tuple(frame.split("\t")) for frame in line.split("\x1e")]
        for line in written.read_text().split("\n")[:-1]
    ]
    read = list(Recording(recording))
    assert [sample.weight for sample in read] == list(range(1, len(truth) + 1))
    for sample in read:
        expected, ours = truth[sample.weight - 1], places(sample.stack)
        if sample.flags:
            found.flags.append(f"{sample.flags!r} {ours[:2]}\nRuby {expected}")
        elif wrong := difference(ours, expected):
            found.differences.append(f"{wrong}\nours {ours}\nRuby {expected}")
        else:
            found.same += 1
    assert found.stops >= count
    found.check()
