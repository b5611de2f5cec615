"""Code of ours that runs in a process for as long as we listen to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import TIMEOUT, Target, Tracer, has_ruby_probes
from rbtrace_py.agent.client import Agent
from rbtrace_py.linux.process import Process

Start = Callable[..., Target]
Trace = Callable[..., Tracer]

RAISE = ("trace", "raise")
SPEAK = ("latency", "method", "--via", "probes")
TRACEPOINTS = "ObjectSpace.each_object(TracePoint).count(&:enabled?)"
IN_A_CHILD = """
  reader, writer = IO.pipe
  pid = fork do
    500.times { raise IOError, "x" rescue nil }
    GC.start
    kept = ObjectSpace.each_object(IOError).count
    streams = [$stdout.equal?(STDOUT), $stderr.equal?(STDERR)]
    writer.write [%s, kept < 100, *streams].inspect
    exit!
  end
  writer.close
  Process.wait(pid)
  [%s, reader.read]
"""


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods.rb")


def begin(trace: Trace, target: Target, words: tuple[str, ...]) -> Tracer:
    if words is SPEAK and not has_ruby_probes():
        pytest.skip("this Ruby has no probes")
    return trace(words[0], target.pid, *words[1:])


def value(target: Target, code: str) -> str:
    with Agent(Process(target.pid)) as agent:
        reply = agent.call("eval", {"code": code, "redirect": False}, TIMEOUT)
    return str(reply["value"])


@pytest.mark.parametrize("words", [RAISE, SPEAK], ids=" ".join)
def test_a_child_has_nothing_of_it(
    words: tuple[str, ...], target: Target, trace: Trace
) -> None:
    """The thread that would undo it is not in the child."""
    tracer = begin(trace, target, words)
    found = value(target, IN_A_CHILD % (TRACEPOINTS, TRACEPOINTS))
    assert found == r'[1, "[0, true, true, true]"]'
    tracer.finish()


@pytest.mark.parametrize("words", [RAISE, SPEAK], ids=" ".join)
def test_output_stays_the_programs(
    words: tuple[str, ...], target: Target, trace: Trace
) -> None:
    tracer = begin(trace, target, words)
    assert value(target, "[$stdout.equal?(STDOUT), $stderr.equal?(STDERR)]") == (
        "[true, true]"
    )
    tracer.finish()
