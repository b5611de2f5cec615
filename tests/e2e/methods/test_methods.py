"""Methods, allocations, exceptions, and collections, counted by the agent's hook."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rubies
from commands import Tracer, answer, has_ruby_probes, run
from processes import TARGETS, TIMEOUT, Target
from rbtrace_py.agent.arming import Armed
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.exceptions import ExceptionOptions, Exceptions
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets
from rubies import Running
from ruby_builds import EACH

Start = Callable[..., Target]
Trace = Callable[..., Tracer]

FIB_15 = 1973
"""The number of calls of a recursive fib(15)."""
FIB_5 = 15


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods/methods.rb")


@pytest.fixture(scope="module", params=EACH)
def each(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A target for each Ruby, shared by all tests of this Ruby."""
    with rubies.running(request.param, "methods/methods.rb") as running:
        yield running


def step(target: Target, word: str) -> dict[str, list[int]]:
    """Run a step. Return the program's own measurements in nanoseconds."""
    done, *words = target.step(word).split()
    assert done == "done"
    pairs = (pair.partition("=") for pair in words)
    return {name: [int(time) for time in times.split(",")] for name, _, times in pairs}


def groups(document: Any) -> dict[str, Any]:
    return {group["key"]: group for group in document["groups"]}


def counted(document: Any) -> dict[str, int]:
    return {key: group["count"] for key, group in groups(document).items()}


# ------------------------------------------------------------------ exactness


@pytest.mark.alone
def test_counts_and_times(each: Running, trace: Trace) -> None:
    """Counts are exact, and times agree with the program's own clock."""
    tracer = trace("latency", each.pid, "method", "--yes", "--json")
    own = step(each.target, "orders")
    for word in ("fib", "raise", "threads", "fibers", "late"):
        step(each.target, word)
    document = answer(tracer)
    found = groups(document)
    expected = {
        "Order#total": 10,
        "Order#lines": 20,
        "Order.find": 20,
        "Work.fib": FIB_15 + 8 * 50 * FIB_5 + 20 * FIB_5,
        "Work.attempt": 30,
        "Work.refuse": 30,
        "Late#run": 7,
    }
    assert {key: found[key]["count"] for key in expected} == expected
    assert {key: found[key]["entries"] for key in expected} == expected
    assert document["lost"] == 0
    assert document["counters"]["abandoned"] == 0
    _check_times(found, own)


def _check_times(found: dict[str, Any], own: dict[str, list[int]]) -> None:
    """Compare leaf methods of some milliseconds within 5 %, and their callers.

    Medians are compared: if the machine interrupts a call, the inner and the outer
    measurement of it differ.
    """
    for key, name in (("Order#lines", "lines"), ("Order.find", "find")):
        group, times = found[key], own[name]
        median = statistics.median_low(times)
        assert group["percentiles"]["50"] == pytest.approx(median, rel=0.05)
        assert sum(times) <= group["sum"] * 1.01
        assert max(times) <= group["max"] * 1.01
        assert sum(count for _, _, count in group["buckets"]) == len(times)
    whole = own["all"][0] * 1.01
    assert found["Order#total"]["total"] + found["Order.find"]["total"] <= whole
    assert found["Order#lines"]["total"] <= found["Order#total"]["total"]
    # Time in other methods does not belong to its own time.
    assert found["Order#total"]["self"] <= found["Order#total"]["total"] / 2


def test_an_agent_that_is_taken_out(target: Target, trace: Trace) -> None:
    """Earlier counts are printed, with a note that later ones are missing."""
    tracer = trace("count", target.pid, "-m", "Work.nest", "--yes")
    step(target, "nest")
    assert run("detach", target.pid, "--yes")[2] == 0
    out, err, code = tracer.result()
    assert re.search(r"method +5 ", out), out
    assert "its agent hung up" in out + err
    assert code == 0, err


def test_recursion_is_counted_once(target: Target, trace: Trace) -> None:
    tracer = trace("latency", target.pid, "method", "--json", "--yes")
    own = step(target, "nest")
    group = groups(answer(tracer))["Work.nest"]
    assert group["count"] == 5
    assert group["total"] <= own["all"][0] * 1.01
    assert group["total"] == pytest.approx(group["max"], rel=0.01)
    assert group["self"] == pytest.approx(group["total"], rel=0.01)
    # The inner calls slept at least 4 + 3 + 2 + 1 times 3 ms.
    assert group["sum"] >= group["total"] + 30_000_000
    assert (group["class"], group["method"], group["singleton"]) == (
        "Work", "nest", True,
    )  # fmt: skip
    assert group["path"].endswith("targets/methods/methods.rb")
    assert isinstance(group["line"], int)


@pytest.mark.parametrize("digits", [2, 3])
def test_digits(target: Target, trace: Trace, digits: int) -> None:
    tracer = trace(
        "latency", target.pid, "method", "--digits", str(digits), "--yes", "--json"
    )
    step(target, "orders")
    step(target, "fib")
    document = answer(tracer)
    for group in document["groups"]:
        assert sum(count for _, _, count in group["buckets"]) == group["count"]
        for low, high, _ in group["buckets"]:
            assert high - low < low / 10**digits or low == high
    buckets = [bucket for group in document["groups"] for bucket in group["buckets"]]
    coarsest = max((high - low) / low for low, high, _ in buckets if low)
    assert coarsest > 1 / 10 ** (digits + 1)


def test_digits_of_what_has_others(target: Target, start: Start) -> None:
    _, err, code = run("latency", target.pid, "method", "--digits", "4")
    assert (code, "4 is not in the range 2<=x<=3" in err) == (2, True), err
    _, err, code = run(
        "latency", start("methods/named.rb").pid, "object", "--digits", "2"
    )
    assert (code, "probes are timed with 3 digits, not 2" in err) == (2, True), err


def test_selected_methods_have_no_self_time(target: Target, trace: Trace) -> None:
    """The methods that they call are not hooked, so their time is unknown."""
    for words in ([], ["--by", "class"]):
        tracer = trace("latency", target.pid, "-m", "Work.", *words)
        step(target, "nest")
        out, _, code = tracer.finish()
        assert (code, "p99" in out, " self " in out) == (0, True, False), out
    tracer = trace("latency", target.pid, "-m", "Work.nest", "--json")
    step(target, "nest")
    nest = groups(answer(tracer))["Work.nest"]
    assert nest["self"] is None
    assert nest["total"] > 0


def test_a_stack_that_overflows(target: Target, trace: Trace) -> None:
    """Its calls are reported without times, with the reason."""
    tracer = trace("latency", target.pid, "-m", "Work.", "--json")
    step(target, "overflow")
    document = answer(tracer)
    found = groups(document)
    sunk = found["Work.sink"]
    assert (sunk["count"], found["Work.float"]["count"]) == (0, 2)
    assert sunk["entries"] == document["counters"]["abandoned"] > 1000
    tracer = trace("latency", target.pid, "-m", "Work.sink")
    step(target, "overflow")
    out, _, _ = tracer.finish()
    assert re.search(r"method +calls +no return ", out)
    assert re.search(r"Work\.sink +0 +[\d,]+ +- +-", out)
    assert "or a stack overflowed" in " ".join(out.split())


def test_time_after_an_overflow_belongs_to_the_caller(
    target: Target, trace: Trace
) -> None:
    words = ("-m", "Work.float", "-m", "Work.sink", "--format", "json")
    tracer = trace("stacks", target.pid, "--calls", *words)
    step(target, "overflow")
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    frames = [frame["name"] for frame in document["frames"]]
    times: Counter[str] = Counter()
    for stack in document["stacks"]:
        times[frames[stack["frames"][-1]]] += stack["weight"]
    assert times["Work.float"] >= 2 * 300_000_000
    assert "or a stack overflowed" in " ".join(err.replace("rbtrace-py:", "").split())


def test_objects_exceptions_and_collections(each: Running, trace: Trace) -> None:
    words = ("object", "raise", "gc", "method", "--yes")
    tracer = trace("count", each.pid, *words, "--by", "class", "--json")
    for word in ("items", "raise", "gc"):
        step(each.target, word)
    found = counted(answer(tracer))
    tracer = trace("latency", each.pid, "gc", "--via", "agent", "--yes", "--json")
    own = step(each.target, "gc")
    (gc,) = answer(tracer)["groups"]
    assert found["Work::Item"] == 500
    assert found["Work::Refused"] >= 30
    assert found["(garbage collection)"] >= 5
    assert found["Work"] == 1 + 30 + 30
    assert gc["count"] >= 5
    assert 0 < gc["total"] <= own["all"][0] * 1.01


# ------------------------------------------------------------------ choosing


def test_selectors(target: Target, trace: Trace) -> None:
    tracer = trace(
        "count", target.pid, "-m", "refuse", "-m", "Order.", "--by", "method", "--json"
    )
    for word in ("orders", "raise", "fib"):
        step(target, word)
    found = counted(answer(tracer))
    assert found == {"Work.refuse": 30, "Order.find": 20, "Order.timed": 20}


def test_a_malformed_selector(target: Target) -> None:
    _, err, code = run("latency", target.pid, "-m", "Order.x.y")
    assert code == 2
    assert "'Order.x.y' does not select a method" in err


def test_c_methods_are_asked_for(target: Target, trace: Trace) -> None:
    words = ("count", target.pid, "-m", "Process.clock_gettime", "--json")
    tracer = trace(*words)
    step(target, "items")
    out, err, _ = tracer.finish()
    assert json.loads(out)["count"] == 0
    assert "add --c-calls to see methods written in C" in err
    _, err, code = run(*words, "--c-calls")
    assert code == 1
    assert "Use --yes to do it anyway" in err
    tracer = trace(*words, "--c-calls", "--yes")
    step(target, "none")
    out, err, code = tracer.finish()
    assert (json.loads(out)["count"], code) == (2, 0)
    assert "calls of C methods stay slower" in err


def test_what_cannot_be_grouped(target: Target) -> None:
    _, err, code = run("latency", target.pid, "method", "--by", "sku")
    assert (code, "cannot be grouped by sku" in err) == (2, True)
    _, err, code = run("count", target.pid, "method", "--filter", "pid > 1")
    assert (code, "does not support --filter" in err) == (2, True)
    _, err, code = run("latency", target.pid, "object")
    assert (code, "object has no duration" in err) == (2, True)
    _, err, code = run("count", target.pid, "method", "shop:checkout")
    assert (code, "Use two commands" in err) == (2, True)
    _, err, code = run("latency", target.pid, "method", "-m", "Till#", "Till.")
    assert (code, "to select a method, -m Till." in err) == (2, True)


def test_what_only_rubys_own_probes_know(target: Target) -> None:
    """The refusal names Ruby's probes. A class is not shown as a method."""
    for word, by in (("raise", "line"), ("raise", "method"), ("object", "method")):
        _, err, code = run("count", target.pid, word, "--by", by)
        assert (code, f"{word} cannot be grouped by {by}" in err) == (2, True), err
        said = " ".join(err.split())
        assert "Group by class or pid;" in said
        assert "ask Ruby's own probes with --via probes, by file, line or" in said


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("object", "`rbtrace-py count PID object --by class`"),
        (":gc", "`rbtrace-py latency PID gc`"),
        ("gc", "`rbtrace-py latency PID gc`"),
        ("method", "`rbtrace-py calls PID`"),
    ],
)
def test_what_is_not_shown_one_by_one(target: Target, word: str, instead: str) -> None:
    out, err, code = run("trace", target.pid, word)
    assert (out, code) == ("", 2), err
    assert "trace works on probes and raise" in err
    assert instead in err


def test_a_probe_of_that_name_is_traced(start: Start, trace: Trace) -> None:
    target = start("methods/named.rb")
    tracer = trace("trace", target.pid, "object", "gc", "--json", "-n", "6")
    target.step("")
    out, err, code = tracer.result()
    *events, end = map(json.loads, out.splitlines())
    assert code == 0, err
    seen = Counter(event["probe"] for event in events)
    assert seen == {"ruby_app:gc": 3, "ruby_app:object": 3}
    assert end["count"] == 6


def test_a_probe_of_that_name_goes_before(start: Start, trace: Trace) -> None:
    target = start("methods/named.rb")
    tracer = trace("count", target.pid, "method", "--json")
    target.step("")
    document = answer(tracer)
    assert (document["series"], document["count"]) == (["ruby_app:method"], 3)
    tracer = trace("count", target.pid, ":method", "--json")
    target.step("")
    document = answer(tracer)
    assert (document["series"], document["count"] >= 1) == (["method"], True)


# ------------------------------------------------------------------- sources


def test_the_source_of_events_is_printed(target: Target, trace: Trace) -> None:
    tracer = trace("count", target.pid, "gc")
    assert "gc: counted by the agent's hook" in tracer.finish()[1]
    if has_ruby_probes():
        tracer = trace("count", target.pid, "raise", "--via", "probes", "--json")
        step(target, "raise")
        out, err, _ = tracer.finish()
        assert json.loads(out)["count"] == 30
        assert "raise: from Ruby's built-in probes" in err


def test_without_an_agent(start: Start, trace: Trace) -> None:
    target = start("methods/methods.rb", "bare")
    _, err, code = run("latency", target.pid, "method")
    assert code == 4
    assert "cannot trace method" in err
    assert "no agent in process" in err
    assert "rbtrace-py attach" in err
    if has_ruby_probes():
        assert "are silent by default since Ruby 2.5" in err
        tracer = trace("count", target.pid, "raise", "--by", "class", "--json")
        step(target, "raise")
        out, err, _ = tracer.finish()
        assert counted(json.loads(out)) == {"Work::Refused": 30}
        assert "raise: from Ruby's built-in probes\n" in err
        _, err, _ = trace("count", target.pid, "object").finish()
        assert "object leaves out strings, arrays" in " ".join(err.split())


def test_selectors_are_never_left_out(target: Target, start: Start) -> None:
    """Ruby's probes accept no selectors: they would count something else."""
    for words in (("latency", "-m", "Order#total"), ("count", "method", "--c-calls")):
        _, err, code = run(words[0], target.pid, *words[1:], "--via", "probes")
        assert code == 2
        assert "needs the agent's hook" in err
        assert "--filter" in err
    bare = start("methods/methods.rb", "bare")
    _, err, code = run("count", bare.pid, "gc", "-m", "Order#total", "--subprocesses")
    assert (code, "no agent" in " ".join(err.split())) == (4, True), err
    named = start("methods/named.rb")
    _, err, code = run("count", named.pid, "method", "-m", "Order#total")
    assert (code, "the agent provides none of these" in err) == (2, True)


@pytest.mark.rubies
def test_without_an_agent_nor_probes(root: None) -> None:
    with rubies.running("3.3", "methods/methods.rb", "bare") as running:
        for command in ("latency", "count"):
            _, err, code = run(command, running.pid, "gc")
            assert code == 4
            said = " ".join(err.split())
            assert "cannot trace gc: no agent" in said
            assert "and its Ruby was built without probes" in said


# ------------------------------------------------------------------- reports


def test_a_table(target: Target, trace: Trace) -> None:
    tracer = trace("latency", target.pid, "method", "--sort", "calls", "--top", "2")
    step(target, "raise")
    step(target, "fib")
    out, err, code = tracer.finish()
    assert (code, err) == (0, "rbtrace-py: method: counted by the agent's hook\n")
    lines = out.splitlines()
    heading = ["method", "calls", "total", "self", "p50", "p99", "max"]
    assert lines[2].split() == heading
    assert lines[3].split()[:2] == ["Work.fib", "1,973"]
    assert lines[4].split()[:2] == ["Work.attempt", "30"]
    # Ruby 3.3 wrote Integer#times in Ruby.
    assert re.fullmatch(r"  and [23] more \(--top shows more of them\)", lines[5])
    assert lines[-1] == "  no losses"
    assert max(map(len, lines)) <= 80


def test_one_method_has_a_picture(target: Target, trace: Trace, tmp_path: Path) -> None:
    hlog = tmp_path / "out.hlog"
    tracer = trace("latency", target.pid, "-m", "Order.find", "--hlog", hlog)
    step(target, "orders")
    out, _, _ = tracer.finish()
    assert "p99.9" in out
    assert "Order.find     20" in out
    assert "\nTag=method/Order.find," in hlog.read_text()


def test_intervals_add_up(target: Target, trace: Trace) -> None:
    tracer = trace(
        "count", target.pid, "object", "--by", "class", "-i", "100ms", "--json"
    )
    for _ in range(3):
        step(target, "items")
    out, _, code = tracer.finish()
    assert code == 0
    documents = [json.loads(line) for line in out.splitlines()]
    found = [counted(document).get("Work::Item", 0) for document in documents]
    assert sum(found) == 1500
    ends = [document["ended_ns"] for document in documents]
    assert [document["started_ns"] for document in documents[1:]] == ends[:-1]


def test_counting_ends_after_the_duration(target: Target) -> None:
    words = ("-m", "Work.fib", "--duration", "100ms", "--json")
    out, _, code = run("count", target.pid, *words)
    assert (json.loads(out)["count"], code) == (0, 0)


def test_counting_ends_after_the_count(target: Target, trace: Trace) -> None:
    tracer = trace("count", target.pid, "method", "--count", "1000", "--json")
    step(target, "fib")
    out, _, code = tracer.result()
    assert (json.loads(out)["count"] >= FIB_15, code) == (True, 0)


# -------------------------------------------------------------------- endings


def test_a_process_that_ends(target: Target, trace: Trace) -> None:
    tracer = trace("latency", target.pid, "method", "--json")
    step(target, "raise")
    target.tell("the end")
    out, _, code = tracer.result()
    found = counted(json.loads(out))
    assert (found["Work.refuse"], code) == (30, 0)


def test_a_process_that_is_killed(target: Target, trace: Trace) -> None:
    tracer = trace("count", target.pid, "method", "--by", "method", "--json")
    step(target, "raise")
    target.process.kill()
    out, _, code = tracer.result()
    # A class or method is unnamed if its name was not requested before.
    assert (json.loads(out)["count"] >= 60, code) == (True, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_armed(number: int, target: Target, trace: Trace) -> None:
    tracer = trace("latency", target.pid, "method", "--json")
    step(target, "fib")
    tracer.finish(number)
    again = trace("count", target.pid, "method", "--json")
    step(target, "fib")
    assert answer(again)["count"] >= FIB_15


def test_only_one_at_a_time(target: Target, trace: Trace) -> None:
    trace("latency", target.pid, "method")
    _, err, code = run("count", target.pid, "object")
    assert (code, "armed by process" in err) == (1, True)


def test_several_processes(start: Start, trace: Trace) -> None:
    targets = [start("methods/methods.rb"), start("methods/methods.rb")]
    pids = ",".join(str(target.pid) for target in targets)
    tracer = trace("count", pids, "-m", "Work.fib", "--by", "pid", "--json")
    for target in targets:
        step(target, "fib")
    step(targets[0], "fib")
    found = counted(answer(tracer))
    assert found == {targets[0].pid: 2 * FIB_15, targets[1].pid: FIB_15}


def test_a_command_of_ours(trace: Trace, tmp_path: Path) -> None:
    """The tracer waits until the command has its agent."""
    words = tmp_path / "words"
    os.mkfifo(words)
    shell = f"exec ruby {TARGETS / 'methods/methods.rb'} < {words}"
    target = os.open(words, os.O_RDWR)
    tracer = trace("count", "-m", "Work.fib", "--json", "--", "sh", "-c", shell)
    os.write(target, b"fib\nthe end\n")
    out, err, code = tracer.result()
    os.close(target)
    assert code == 0, err
    ready, done, document = out.splitlines()
    assert (ready, done.split()[0]) == ("ready", "done")
    assert json.loads(document)["count"] == FIB_15


# ------------------------------------------------------------------ call trees


OURS = ("Order", "Work.", "Object#")


def folded(text: str) -> Counter[str]:
    """Return weights by stack, of the program's methods alone. Some of Ruby's own
    methods are written in Ruby in one version and in C in another."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, weight = line.rpartition(" ")
        names = [frame.split()[0] for frame in stack.split(";")]
        if names[-1].startswith(OURS):
            found[";".join(n for n in names if n.startswith(OURS))] += int(weight)
    return found


def test_call_trees(each: Running, trace: Trace) -> None:
    """Every path has its exact count."""
    tracer = trace("stacks", each.pid, "--calls", "--weight", "calls", "--yes")
    for word in ("orders", "raise", "threads", "fibers"):
        step(each.target, word)
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "calls: from the agent's hook" in err
    expected = {
        "Order#total": 10,
        "Order#total;Order#lines": 20,
        "Order#total;Order#lines;Order#timed": 20,
        "Order.find": 20,
        "Order.find;Order.timed": 20,
        "Work.attempt": 30,
        "Work.attempt;Work.refuse": 30,
        "Object#now": 8,
    }
    # fib(5) makes 15 calls, by depth: 1, 2, 4, 6, and 2.
    for depth, count in enumerate((1, 2, 4, 6, 2), 1):
        expected[";".join(["Work.fib"] * depth)] = count * (8 * 50 + 20)
    assert folded(out) == expected


def test_call_trees_in_time(target: Target, trace: Trace, tmp_path: Path) -> None:
    output = tmp_path / "calls.json"
    words = ("--format", "json", "-o", output, "-m", "Order.")
    tracer = trace("stacks", target.pid, "--calls", *words)
    own = step(target, "orders")
    _, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(output.read_text())
    assert (document["unit"], document["engine"]) == ("ns", "agent")
    assert document["counters"]["samples"] == 40
    names = [frame["name"] for frame in document["frames"]]
    found = {
        tuple(names[frame] for frame in row["frames"]): row["weight"]
        for row in document["stacks"]
        if names[row["frames"][-1]] != "(garbage collection)"
    }
    leaf = found.pop(("Order.find", "Order.timed"))
    assert sum(own["find"]) <= leaf * 1.01
    assert leaf + sum(found.values()) <= own["all"][0]
    assert set(found) == {("Order.find",)}


@pytest.mark.parametrize(
    ("form", "text"),
    [("callgrind", "calls=4 0\n"), ("summary", "7 calls in"), ("flamegraph", "<svg")],
)
def test_call_trees_in_other_formats(
    form: str, text: str, target: Target, trace: Trace, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = ("--format", form, "-o", output, "--weight", "calls", "-m", "Work.nest")
    tracer = trace("stacks", target.pid, "--calls", "-m", "Object#now", *words)
    step(target, "nest")
    _, err, code = tracer.finish()
    assert code == 0, err
    assert text in output.read_text()


def test_call_trees_take_an_agent(start: Start) -> None:
    target = start("methods/methods.rb", "bare")
    _, err, code = run("stacks", target.pid, "--calls")
    assert (code, "no agent in process" in err) == (4, True)
    _, err, code = run("stacks", target.pid, "-m", "Order.")
    assert (code, "need --calls" in err) == (2, True)


def test_the_agent_is_put_there_first(start: Start, trace: Trace) -> None:
    target = start("methods/methods.rb", "bare")
    tracer = trace("count", target.pid, "-m", "Work.fib", "--attach", "--json")
    step(target, "fib")
    out, err, code = tracer.finish()
    assert (json.loads(out)["count"], code) == (FIB_15, 0), err


def test_names_of_what_was_seen_last(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are first raised between the last request for names and the end of
    tracing."""
    targets = Targets.from_pids([target.pid])
    options = MethodOptions(by="class")
    with closing(targets), Methods(targets, "count", ["raise"], options) as session:
        monkeypatch.setattr(Armed, "learn", lambda self: None)
        target.step("raise")
        session.finish()
        found = {group.key: group.count for group in session.snapshot().groups}
    assert found == {"Work::Refused": 30}


# ------------------------------------------------------------------ exceptions


def test_exceptions(each: Running, trace: Trace) -> None:
    """Each has its class, message, place, and backtrace."""
    tracer = trace("trace", each.pid, "raise", "--backtrace", "--yes", "--json")
    step(each.target, "raise")
    out, err, code = tracer.finish()
    _, said, _ = run("eval", each.pid, "1")
    assert (code, said) == (0, "")
    assert "raise: from the agent" in err
    *events, end = map(json.loads, out.splitlines())
    assert (end["count"], end["lost"]) == (30, 0)
    (arguments,) = {tuple(event["arguments"].items()) for event in events}
    found = dict(arguments)
    path = found["file"]
    assert path.endswith("targets/methods/methods.rb")
    expected = {"class": "Work::Refused", "message": "no", "method": "refuse"}
    assert found.items() >= expected.items()
    innermost, caller, *_ = events[0]["backtrace"]
    assert innermost.startswith(f"{path}:{found['line']}:in ")
    assert "refuse" in innermost
    assert "attempt" in caller


def test_exceptions_of_a_class_without_a_name(target: Target, trace: Trace) -> None:
    tracer = trace("trace", target.pid, "raise", "-n", "1")
    code = "raise Class.new(StandardError), 'no' rescue 0"
    assert run("eval", target.pid, f"Thread.new {{ {code} }}.value")[2] == 0
    out, _, status = tracer.result()
    assert re.search(r'class: "#<Class:0x[0-9a-f]+>", message: "no"', out), out
    assert status == 0


def test_exceptions_for_people(target: Target, trace: Trace) -> None:
    tracer = trace("trace", target.pid, "raise", "-n", "2")
    step(target, "raise")
    out, err, code = tracer.result()
    assert (code, len(out.splitlines())) == (0, 2)
    assert 'rbtrace:raise class: "Work::Refused", message: "no", file: ' in out
    assert "2 events\n  no losses\n" in err
    words = ("--template", "{class} {message}", "--backtrace")
    tracer = trace("trace", target.pid, "raise", *words)
    step(target, "raise")
    lines = tracer.finish()[0].splitlines()
    assert lines.count('"Work::Refused" "no"') == 30
    assert sum("refuse'" in line for line in lines) == 30


def test_the_exception_that_ends_the_program(target: Target, trace: Trace) -> None:
    tracer = trace("trace", target.pid, "raise", "--backtrace", "--json")
    target.tell("die")
    out, err, code = tracer.result()
    assert code == 0, err
    *events, last, end = map(json.loads, out.splitlines())
    arguments = last["arguments"]
    assert (arguments["class"], arguments["message"]) == ("Work::Refused", "no")
    assert arguments["method"] == "refuse"
    place = f"{arguments['file']}:{arguments['line']}:in "
    assert last["backtrace"][0].startswith(place)
    assert (len(events), end["count"], end["lost"]) == (300, 301, 0)


def test_exceptions_where_io_converts(target: Target, trace: Trace) -> None:
    """Rails sets default_internal. The agent writes bytes, whatever the setting."""
    code = "Encoding.default_internal = Encoding::UTF_8; 0"
    assert run("eval", target.pid, code)[2] == 0
    tracer = trace("trace", target.pid, "raise", "--backtrace", "--json")
    raised = "Thread.new { raise IOError, 'é' * 100 rescue 0 }.join; 0"
    assert run("eval", target.pid, raised)[2] == 0
    out, err, status = tracer.finish()
    event, end = map(json.loads, out.splitlines())
    assert event["arguments"]["message"].startswith("é" * 60)
    assert (end["count"], end["lost"], status) == (1, 0, 0), err


def test_a_failure_of_the_agents_code_is_an_error(target: Target, trace: Trace) -> None:
    """The TracePoint's thread fails: the result is an error, not an empty table."""
    tracer = trace("trace", target.pid, "raise")
    step(target, "raise")
    code = (
        "Thread.list.each { |t| t.thread_variable_get(:rbtrace_end) and"
        " t.raise('odd') }; 0"
    )
    assert run("eval", target.pid, code)[2] == 0
    out, err, status = tracer.result()
    assert (len(out.splitlines()), status) == (30, 1)
    assert "no losses" not in err
    assert "events of 1 process are missing" in err
    assert f"process {target.pid}: odd" in err


def test_exceptions_of_a_class_alone(target: Target, trace: Trace) -> None:
    """Exceptions that the filter rejects are counted separately, and not by -n."""
    chosen = ("--filter", 'class == "KeyError" and message ^= "n"', "-n", "2")
    tracer = trace("trace", target.pid, "raise", "--json", *chosen)
    step(target, "raise")
    code = "[IOError, 'no', KeyError, 'yes', KeyError, 'no', KeyError, 'nil']"
    code += ".each_slice(2) { |kind, text| raise kind, text rescue 0 }"
    assert run("eval", target.pid, f"Thread.new {{ {code} }}.join; 0")[2] == 0
    out, err, status = tracer.result()
    *events, end = map(json.loads, out.splitlines())
    assert [e["arguments"]["message"] for e in events] == ["no", "nil"], err
    assert (end["count"], end["counters"]["filtered"], status) == (2, 32, 0)


def test_exceptions_of_ruby_itself(each: Running, trace: Trace) -> None:
    """An exception of a Ruby method that is built into Ruby has its caller's place."""
    tracer = trace("trace", each.pid, "raise", "-n", "1", "--yes", "--json")
    code = "Thread.new { eval('[].pack(%q(C)) rescue 0', nil, '/shop.rb', 7) }.join; 0"
    assert run("eval", each.pid, code)[2] == 0
    out, err, status = tracer.result()
    arguments = json.loads(out.splitlines()[0])["arguments"]
    place = arguments["class"], arguments["file"], arguments["line"]
    assert (*place, status) == ("ArgumentError", "/shop.rb", 7, 0), err


FORKING = """
$stdout.sync = true
require "tracepoint/agent"
refuse = -> { raise "no" rescue nil }
puts "ready"
$stdin.gets
pid = Thread.new do
  fork do
    puts Process.pid
    while $stdin.gets
      refuse.call
      Thread.new(&refuse).join
      puts "done"
    end
  end
end.value
Process.wait(pid)
"""


@pytest.fixture
def forking(start: Start, tmp_path: Path) -> Target:
    script = tmp_path / "forking.rb"
    script.write_text(FORKING)
    return start(str(script))


def until_joined(session: Exceptions | Methods, late: Callable[[], int]) -> None:
    """Wait until a child has joined. It starts its agent after its start."""
    deadline = time.monotonic() + TIMEOUT
    while not late():
        assert time.monotonic() < deadline
        session.refresh()


def test_exceptions_of_a_child(forking: Target, root: None) -> None:
    """The forking thread becomes its main thread, with the child's number, not the
    parent's."""
    targets = Targets.from_pids([forking.pid], follow=True)
    with closing(targets), Exceptions(targets, ExceptionOptions()) as session:
        child = int(forking.step())
        until_joined(session, lambda: session.result_counters()["late_processes"])
        forking.step()
        session.finish()
        events = list(session.events(0))
        counters = session.result_counters()
    assert [event.pid for event in events] == [child, child]
    assert events[0].tid == child
    assert events[1].tid not in (child, forking.pid)
    assert counters == {
        "seen": 2,
        "filtered": 0,
        "without_agent": 0,
        "late_processes": 1,
        "other_ractors": 0,
        "lost": 0,
        "hung_up": 0,
    }


def test_counts_of_a_child(forking: Target, root: None) -> None:
    targets = Targets.from_pids([forking.pid], follow=True)
    with closing(targets), Methods(targets, "count", ["raise"]) as session:
        forking.step()
        until_joined(session, lambda: session.snapshot().counters["late_processes"])
        forking.step()
        session.finish()
        found = session.snapshot()
    assert [group.count for group in found.groups] == [2]
    assert found.counters["late_processes"] == 1


BEGUN_BEFORE = "did not wait for tracing"


def nested(session: Methods) -> int:
    """Return the calls of Work.nest once their method has its name."""
    groups = session.snapshot().groups
    return sum(group.count for group in groups if group.key == "Work.nest")


@pytest.mark.parametrize("command", ["count", "latency"])
def test_what_a_target_executes(command: str, target: Target, root: None) -> None:
    """With its children, the program is followed, and earlier counts are kept."""
    targets = Targets.from_pids([target.pid], follow=True)
    options = MethodOptions("method")
    with closing(targets), Methods(targets, command, ["method"], options) as session:
        step(target, "nest")
        until_joined(session, lambda: nested(session) == 5)
        assert target.step("exec") == "ready"
        until_joined(session, lambda: BEGUN_BEFORE in " ".join(session.notes))
        assert not session.is_over
        step(target, "nest")
        session.finish()
        assert nested(session) == 10
        assert session.snapshot().counters["hung_up"] == 0


def test_calls_of_what_a_target_executes(target: Target, root: None) -> None:
    targets = Targets.from_pids([target.pid], follow=True)
    told = []
    with closing(targets), closing(Calls(targets, CallsOptions())) as session:
        session.start()
        step(target, "nest")
        while sum(e.event.what is CallEventKind.RETURNED for e in told) < 5:
            told += session.events(0.02)
        assert target.step("exec") == "ready"
        while BEGUN_BEFORE not in " ".join(session.notes):
            told += session.events(0.02)
            session.refresh()
        step(target, "nest")
        told += session.drain()
        problems = [end.problem for end in session.ends()]
    kinds = Counter((e.event.what, e.method.full_name) for e in told if e.method)
    assert kinds[CallEventKind.RETURNED, "Work.nest"] == 10
    assert problems == [None, None]


def test_a_target_that_becomes_another_program(target: Target, root: None) -> None:
    """Without its children, the program is not followed, and a note reports this."""
    targets = Targets.from_pids([target.pid])
    options = MethodOptions("method")
    with closing(targets), Methods(targets, "count", ["method"], options) as session:
        step(target, "nest")
        until_joined(session, lambda: nested(session) == 5)
        assert target.step("exec") == "ready"
        until_joined(session, lambda: session.is_over)
        assert nested(session) == 5
        assert session.snapshot().counters["hung_up"] == 1


@pytest.mark.parametrize(
    "words", [["count", "-m", "Work.fib"], ["trace", "raise"], ["calls"]]
)
def test_a_child_without_an_agent_is_left_out(
    target: Target, trace: Trace, words: list[str]
) -> None:
    step(target, "spawn")
    tracer = trace(words[0], target.pid, "--subprocesses", *words[1:])
    _, err, code = tracer.finish()
    assert code == 0, err
    assert "skipping process " in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_tracepoint_stays(number: int, target: Target, trace: Trace) -> None:
    tracer = trace("trace", target.pid, "raise")
    step(target, "raise")
    tracer.finish(number)
    code = (
        "Thread.pass while ObjectSpace.each_object(TracePoint).any?(&:enabled?)"
        "; Thread.list.size"
    )
    out, err, _ = run("eval", target.pid, code)
    assert out.strip().isdigit(), err


def test_what_exceptions_do_not_take(target: Target) -> None:
    _, err, code = run("trace", target.pid, "raise", "--filter", "klass == 1")
    assert (code, "klass" in err) == (2, True)
    _, err, code = run("trace", target.pid, "gc__mark__begin", "--backtrace")
    assert (code, "--backtrace needs" in err) == (2, True)


# --------------------------------------------------------- Ruby's own probes


@pytest.mark.usefixtures("ruby_probes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_method_probes_are_made_to_speak(
    number: int, target: Target, trace: Trace
) -> None:
    words = ("--via", "probes", "--by", "method", "--json")
    tracer = trace("latency", target.pid, "method", *words)
    step(target, "fib")
    out, err, _ = tracer.finish(number)
    if number == signal.SIGINT:
        assert counted(json.loads(out))["fib"] == FIB_15
        assert "method: from Ruby's built-in probes" in err
        assert "the agent enables Ruby's method probes" in err
    # Nothing of the tracer stays behind.
    code = "Thread.pass while ObjectSpace.each_object(TracePoint).any?(&:enabled?)"
    assert run("eval", target.pid, code)[0] == "nil\n"
    tracer = trace("count", target.pid, "ruby:*", "--json")
    step(target, "fib")
    assert counted_series(answer(tracer)).get("ruby:method__entry", 0) == 0


def counted_series(document: Any) -> dict[str, int]:
    return {group["series"]: group["count"] for group in document["groups"]}


@pytest.mark.usefixtures("ruby_probes")
def test_method_probes_without_an_agent(start: Start, trace: Trace) -> None:
    target = start("methods/methods.rb", "bare")
    tracer = trace("count", target.pid, "ruby:method__entry", "--json")
    step(target, "fib")
    out, err, _ = tracer.finish()
    assert json.loads(out)["count"] == 0
    assert "are silent unless something enables" in err
