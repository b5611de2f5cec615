"""The PID of an ended process is reused: the new program's memory is not read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from processes import TARGETS, Target
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.linux.process import Process
from rbtrace_py.session.stacks.dump import dump
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode

pytestmark = pytest.mark.usefixtures("root")

CODE = """
def first = $stdin.gets
def second = $stdin.gets
puts :ready
$stdout.flush
send(ARGV[0])
"""
RUBY = ("setarch", "-R", "ruby", "-e", CODE)
"""Run without randomized addresses, so that both programs have the same layout."""


@contextmanager
def replaced(target: Target) -> Iterator[None]:
    """End a process and run another program under its PID."""
    target.close()
    script = str(TARGETS / "with_pid.py")
    with closing(Target(sys.executable, script, target.pid, *RUBY, "second")):
        yield


@pytest.fixture
def target() -> Iterator[Target]:
    with closing(Target(*RUBY, "first")) as target:
        yield target


def test_samples(target: Target) -> None:
    with Process(target.pid) as process, RubyProcess(process) as ruby:
        (sample,) = ruby.samples(SamplingMode.WALL)
        assert "Object#first" in [frame.name for frame in sample.stack.frames]
        with replaced(target), pytest.raises(NoSuchTarget, match="has ended"):
            ruby.samples(SamplingMode.WALL)


def test_memory(target: Target) -> None:
    with Process(target.pid) as process, RubyProcess(process) as ruby:
        memory, address = ruby.vm.memory, ruby.threads[0].address
        memory.read(address, 8)
        with replaced(target):
            with pytest.raises(NoSuchTarget, match="has ended"):
                memory.read(address, 8)
            with pytest.raises(NoSuchTarget, match="has ended"):
                memory.gather([(address, 8)])
            with pytest.raises(NoSuchTarget, match="has ended"):
                memory.read(8, 8)  # nothing is mapped there


def test_a_dump(target: Target) -> None:
    with (
        Process(target.pid) as process,
        replaced(target),
        pytest.raises(NoSuchTarget, match="has ended"),
    ):
        dump(process)
