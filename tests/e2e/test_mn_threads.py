"""Threads that share native threads: each is seen for what it does itself.

Ruby 3.3 and later run all but the main thread so with RUBY_MN_THREADS=1.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from processes import TARGETS, Target
from rbtrace_py.linux.process import Process
from rbtrace_py.session.rubies import Mode, RubyProcess
from ruby_builds import Build

BUILDS = tuple(map(Build, ("3.3", "3.4", "4.0.5-shared")))
ENVIRONMENT = {"RUBY_MN_THREADS": "1", "RUBY_MAX_CPU": "1"}

pytestmark = [pytest.mark.rubies, pytest.mark.usefixtures("root")]


@pytest.fixture(params=BUILDS, ids=str)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    words = [*request.param.words(), str(TARGETS / "mn_threads.rb")]
    target = Target(*words, env=ENVIRONMENT)
    try:
        yield target
    finally:
        target.close()


def test_one_native_thread_and_another_ruby_thread(target: Target) -> None:
    """Between two lists of the threads: the one that ran before is no sample."""
    first = target.step("a")
    with Process(target.pid) as process, RubyProcess(process) as ruby:
        for turn in "baba":
            assert target.step(turn) == first  # on the same native thread
            samples = ruby.samples(Mode.CPU)  # of the main thread perhaps, too
            (sample,) = [one for one in samples if not one.thread.is_main]
            frames = [frame.name for frame in sample.stack.frames]
            assert (sample.thread.name, sample.thread.tid) == (turn, None)
            assert f"Object#burn_{turn}" in frames
