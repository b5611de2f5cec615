"""Agent tasks: our code that runs in a process as long as we are connected."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from commands import Tracer, has_ruby_probes
from processes import TIMEOUT, Target
from rbtrace_py.agent.client import Agent
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import agent_task
from rbtrace_py.session.methods.exceptions import ExceptionOptions, Exceptions
from rbtrace_py.session.targets.targets import Targets

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
WITHOUT_REST = """
  $number = 0
  Thread.new { loop { raise IOError, ($number += 1).to_s rescue nil } }
  nil
"""


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods/methods.rb")


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
    """The thread that would undo it does not exist in the child."""
    tracer = begin(trace, target, words)
    found = value(target, IN_A_CHILD % (TRACEPOINTS, TRACEPOINTS))
    assert found == r'[1, "[0, true, true, true]"]'
    tracer.finish()


def test_agent_tasks_do_not_change_the_programs_variables(
    target: Target, trace: Trace
) -> None:
    """The program has a ``line`` at top level and keeps reading it."""
    tracer = trace("trace", target.pid, "raise", "-n", "30")
    assert value(target, 'line = "kept"') == '"kept"'
    code = "Thread.new { 30.times { raise IOError rescue nil } }.join; 1"
    assert value(target, code) == "1"
    tracer.result()
    assert value(target, "line") == '"kept"'


def test_code_whose_time_is_over_is_run_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exceptions raised between two runs are unknown and count as lost."""
    monkeypatch.setattr(agent_task, "_LIMIT_MS", 2_000)
    deadline = time.monotonic() + TIMEOUT
    targets = Targets.from_pids([target.pid])
    with closing(targets), Exceptions(targets, ExceptionOptions()) as session:
        kinds: set[str] = set()
        while session.result_counters()["lost"] < 2 or not kinds:
            target.step("raise")
            kinds |= {str(event.values[0]) for event in session.events(0.1)}
            assert time.monotonic() < deadline, "it is not run again"
        session.finish()
        kinds |= {str(event.values[0]) for event in session.events(0)}
    assert kinds == {"Work::Refused"}


def test_a_program_that_raises_without_rest(target: Target) -> None:
    """The agent gets the GVL ten times per second and ends in time."""
    targets = Targets.from_pids([target.pid])
    with closing(targets), Exceptions(targets, ExceptionOptions()) as session:
        value(target, WITHOUT_REST)
        found = list(session.events(TIMEOUT))
        session.finish()
        found += session.events(0)
        last_raised = int(value(target, "$number"))
        counters = session.result_counters()
    numbers = [int(str(event.values[1])) for event in found]
    first, last = numbers[0], numbers[-1]
    assert numbers == sorted(numbers)
    known = len(numbers) + counters["lost"]
    assert last - first < known <= last_raised - first + 1
    assert (counters["seen"], counters["hung_up"]) == (len(numbers), 0)


@pytest.mark.parametrize("words", [RAISE, SPEAK], ids=" ".join)
def test_output_stays_the_programs(
    words: tuple[str, ...], target: Target, trace: Trace
) -> None:
    tracer = begin(trace, target, words)
    assert value(target, "[$stdout.equal?(STDOUT), $stderr.equal?(STDERR)]") == (
        "[true, true]"
    )
    tracer.finish()
