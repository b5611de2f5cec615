"""``calls`` with expressions: the arguments of calls in real programs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import rubies
from commands import Tracer, run, without_times
from processes import TARGETS, TIMEOUT, Target
from ruby_builds import EACH

Trace = Callable[..., Tracer]
Start = Callable[..., Target]

PLACE = f"{TARGETS}/methods/orders.rb:13"
VOWELS = f"""\
String#multiply_vowels(self="hello", self.length=5, num=3)
  String#gsub(self="hello", @test=123)
    String#*(self="e", __source__="{PLACE}") <>
    String#*(self="o", __source__="{PLACE}") <>
  String#gsub <>
String#multiply_vowels <>

"""
"""As in rbtrace's manual."""
ASKED = [
    "String#gsub(self, @test)",
    "String#*(self, __source__)",
    "String#multiply_vowels(self, self.length, num)",
]


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods/orders.rb")


def shown(tracer: Tracer, target: Target, step: str) -> str:
    """Return what calls prints for a step, without times."""
    assert target.step(step).startswith("done")
    out, err, code = tracer.finish()
    assert code == 0, err
    return without_times(out)


@pytest.mark.parametrize("name", EACH)
def test_as_rbtrace_shows_them(name: str, trace: Trace) -> None:
    with rubies.running(name, "methods/orders.rb") as running:
        tracer = trace("calls", running.pid, "--c-calls", "--yes", "-m", *ASKED)
        assert shown(tracer, running.target, "vowels") == VOWELS


def test_rbtraces_own_words(target: Target, trace: Trace) -> None:
    """Times are in seconds, as rbtrace prints them for scripts."""
    tracer = trace("rbtrace", "-p", target.pid, "-m", *ASKED, "--c-calls", "--yes")
    out = shown(tracer, target, "vowels")
    assert re.sub(r"<\d+\.\d{6}>", "<>", out) == VOWELS


def test_json(target: Target, trace: Trace) -> None:
    words = ["-m", "Order#add(self, item, nope, [count, 1])", "find", "--json"]
    tracer = trace("calls", target.pid, *words)
    target.step("orders")
    find, add, end = map(json.loads, tracer.finish()[0].splitlines())
    assert (find["method"], find["values"]) == ("Order.find", None)
    values = add["values"]
    assert values.pop("nope").startswith("(NameError: undefined local variable or met")
    assert values == {
        "self": '#<Order "7">',
        "item": '"a\\e[1m\u202e"',
        "[count, 1]": "[2, 1]",
    }
    assert end["counters"]["no_values"] == 0


def test_slow_ones(target: Target, trace: Trace) -> None:
    words = ["--slow", "0.000001", "-m", "Order#add(@id)", "Order#leaf"]
    tracer = trace("calls", target.pid, *words)
    found = shown(tracer, target, "orders")
    assert found == "  Order#leaf <>\nOrder#add(@id=7) <>\n\n"


def test_a_recording(target: Target, trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "orders.rbrec"
    words = ["-m", "Order#add(self, count)", "Order#leaf", "--record", path]
    tracer = trace("calls", target.pid, *words)
    assert shown(tracer, target, "orders") == ""
    out, err, code = run("report", path, "--format", "calls")
    assert code == 0, err
    given = '(self=#<Order "7">, count=2)'
    tree = f"Order#add{given}\n  Order#leaf <>\nOrder#add <>\n\n"
    assert without_times(out) == tree
    out = run("report", path, "--format", "chrome", "-o", "-")[0]
    events = json.loads(out)["traceEvents"]
    (args,) = [e["args"] for e in events if e["name"] == "Order#add"]
    assert (args["self"], args["count"]) == ('#<Order "7">', "2")


def test_what_is_refused(target: Target, tmp_path: Path) -> None:
    """They are refused before anything is hooked: no Ruby, or values are not shown."""
    out, err, code = run("calls", target.pid, "-m", "add(1 +)")
    assert (out, code) == ("", 1)
    assert 'the expression "1 +" is not valid Ruby' in " ".join(err.split())
    assert run("calls", target.pid, "-m", "add(1")[2] == 2
    for words in (
        ["latency", target.pid, "method"],
        ["stacks", target.pid, "--calls"],
    ):
        out, err, code = run(*words, "-m", "Order#add(self)")
        assert (out, code) == ("", 2)
        assert "`rbtrace-py calls PID -m 'Order#add(self)'`" in " ".join(err.split())
    target.step("orders")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_tracer_ends_within_an_evaluation(
    how: signal.Signals, target: Target, trace: Trace
) -> None:
    """The program continues and gives the right answer."""
    ends = f"Process.kill({int(how)}, Tracepoint::Agent.armed_by.peer_pid); loop {{}}"
    tracer = trace("calls", target.pid, "-m", f"Order.find({ends})")
    assert target.step("stuck") == "done right"
    assert tracer.process.wait(TIMEOUT) == (0 if how is signal.SIGINT else -how)
    assert target.step("stuck") == "done right"
