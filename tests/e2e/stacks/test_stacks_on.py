"""Stacks at events of programs that fire known numbers of events."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import Tracer, below, by_names, run
from processes import LIB, TARGETS, Target
from rbtrace_py.linux.probes import find_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.recording.sample_recording import Recording
from rbtrace_py.session.stacks.sampling_options import EventChoice
from ruby_builds import Build, build_gem, each_build

EVENTS = str(TARGETS / "stacks/events.rb")
TRACE = Callable[..., Tracer]
Document = dict[str, Any]

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def target() -> Iterator[Target]:
    with closing(Target("ruby", f"-I{LIB}", EVENTS)) as made:
        yield made


def sampled(
    trace: TRACE,
    target: Target,
    step: str,
    *options: object,
    env: dict[str, str] | None = None,
) -> Document:
    """Read stacks at events during a target's step. Return the JSON document."""
    pid = int(target.ready.split()[1])
    tracer = trace("stacks", pid, "--format", "json", *options, env=env)
    assert target.step(step) == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    found: Document = json.loads(out)
    assert (found["mode"], found["engine"]) == ("event", "bpf")
    assert found["lost"] == 0, found["counters"]
    assert found["counters"]["unclean"] == 0
    return found


def test_a_probe_of_the_gem(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "fire 1000", "--on", "shop:sold")
    assert (found["unit"], found["event"]) == ("events", "shop:sold")
    caller = ("<main>", "Kernel#public_send", "Events#fire", "Integer#times")
    fired = ("block in Events#fire", "Tracepoint::Probe#fire")
    assert by_names(found) == {(*caller, *fired): 1000}


def test_an_argument_as_weight(target: Target, trace: TRACE) -> None:
    options = ("--on", "shop:sold", "--weight", "cents")
    found = sampled(trace, target, "fire 1000", *options)
    assert (found["unit"], found["event"], found["argument"]) == (
        "weight",
        "shop:sold",
        "cents",
    )
    assert list(by_names(found).values()) == [sum(range(1, 1001))]
    assert found["counters"]["samples"] == 1000


def test_units_of_a_weight(target: Target, trace: TRACE, tmp_path: Path) -> None:
    path = tmp_path / "out.rbrec"
    options = ("--on", "shop:sold", "--weight", "cents", "--unit", "bytes")
    tracer = trace("record", target.pid, *options, "-o", path)
    assert target.step("fire 1000") == "done"
    _, err, code = tracer.finish()
    assert code == 0, err
    formats = {
        "readable": "(500 B)",
        "summary": "489 KiB",
        "flamegraph": '"unit":"bytes"',
        "speedscope": '"unit": "bytes"',
        "json": '"unit": "bytes"',
    }
    for name, shown in formats.items():
        out, err, code = run("report", path, "--format", name, "-o", "-")
        assert (shown in out, code) == (True, 0), (name, out[:500], err)
    run("report", path, "--format", "pprof", "-o", tmp_path / "a.pb")
    data = gzip.decompress((tmp_path / "a.pb").read_bytes())
    assert b"weight" in data
    assert b"bytes" in data


@pytest.mark.parametrize(
    ("weight", "unit", "expected"),
    [
        ("cents", None, "weight"),
        ("cents", "ns", "ns"),
        ("duration_ns", None, "ns"),
        ("duration_ns", "bytes", "bytes"),
        (None, None, "events"),
    ],
)
def test_the_unit_of_an_argument(
    weight: str | None, unit: str | None, expected: str
) -> None:
    choice = EventChoice("shop:sold", weight=weight, unit=unit)
    assert choice.unit_of_weights == expected


def test_arguments_that_are_no_weight(target: Target, trace: TRACE) -> None:
    """nil is the smallest number, and twice that number is 0."""
    options = ("--on", "shop:sold", "--weight", "cents", "--every", 2)
    tracer = trace("stacks", target.pid, *options, "--format", "json")
    assert target.step("lack 1000") == "done"
    out, err, code = tracer.finish()
    document = json.loads(out)
    counters = document["counters"]
    assert (document["stacks"], counters["failed"]) == ([], 500)
    assert counters["no_weight"] == 500
    assert "500 events failed: their weight was negative" in " ".join(err.split())
    assert code == 5


def test_sums_do_not_wrap_around(target: Target, trace: TRACE) -> None:
    """The sum of four of these exceeds 64 bits."""
    options = ("--on", "shop:sold", "--weight", "cents")
    tracer = trace("stacks", target.pid, *options, "--format", "json")
    assert target.step("much 4") == "done"
    out, _, code = tracer.finish()
    document = json.loads(out)
    assert (document["stacks"], document["counters"]["failed"], code) == ([], 4, 5)
    found = sampled(trace, target, "most 1000", *options)
    assert found["weight"] == 1000 * 2**44


def test_more_stacks_than_there_is_room_for(target: Target, trace: TRACE) -> None:
    """Each event is counted, or is part of a sum with a reason."""
    options = ("--on", "shop:sold", "--yes", "--max-loss", 100, "--format", "json")
    tracer = trace("stacks", target.pid, *options)
    assert target.step("branch 17") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    assert document["weight"] + document["lost"] == 1 << 17
    counters = document["counters"]
    failed = counters["no_room"] + counters["buffer_full"]
    assert failed == document["lost"] > 0
    reasons = re.findall(r"([\d,]+) samples failed: (?:the buffer|there is room)", err)
    assert sum(int(number.replace(",", "")) for number in reasons) == failed


def test_a_summary(target: Target, trace: TRACE) -> None:
    for weight, line in (
        ((), "shop:sold: 1,000 events"),
        (("--weight", "cents"), "shop:sold, cents: 500,500"),
    ):
        options = ("--on", "shop:sold", "--format", "summary", *weight)
        tracer = trace("stacks", target.pid, *options)
        assert target.step("fire 1000") == "done"
        out, err, code = tracer.finish()
        assert code == 0, err
        assert out.splitlines()[0] == line
        assert "100.00   100.00  Tracepoint::Probe#fire" in out
        assert "1,000 samples in" in out


def test_each_nth(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "fire 1000", "--on", "shop:sold", "--every", 10)
    assert (found["unit"], found["weight"]) == ("events", 1000)
    assert found["counters"]["samples"] == 100


def test_fewer_events_than_every(target: Target, trace: TRACE) -> None:
    tracer = trace("stacks", target.pid, "--on", "shop:sold", "--every", 1 << 30)
    assert target.step("fire 1000") == "done"
    out, err, code = tracer.finish()
    assert (out, code) == ("", 0)
    assert "no thread had 1,073,741,824 events: lower --every" in err
    out, err, code = trace("stacks", target.pid, "--on", "shop:sold").finish()
    assert (out, code) == ("", 0)
    assert "shop:sold: no event was seen" in err


UMASKS = sum(number & 0o777 for number in range(1, 1001))
EACH: dict[str, tuple[str, str | None, str, int]] = {
    "shop:sold": ("fire", None, "Events#fire", 1000),
    "ruby:object__create": ("create", None, "Events#make", 1000),
    "ruby:gc__obj_new": ("create", None, "Events#make", 1000),
    "ruby:raise": ("fail", None, "Events#one_fails", 1000),
    "uprobe:libc:getppid": ("parent", None, "Events#ask", 1000),
    "uprobe:libc:umask": ("mask", "arg0", "Events#veil", UMASKS),
    "tracepoint:signal:signal_generate": ("signal", "sig", "Events#poke", 18_000),
    "syscall:getppid": ("parent", None, "Events#ask", 1000),
    "syscall:write": ("write", "count", "Events#put", sum(range(1, 1001))),
}
"""The step that fires 1,000 events, the events' weight and method, and the sum."""


@each_build
def test_each_kind(build: Build, trace: TRACE) -> None:
    build_gem(build)
    with closing(Target(*build.words(), "-I", LIB, EVENTS)) as target:
        there = probes_of_ruby(int(target.ready.split()[1]))
        is_there = {word: word in there or word[:5] != "ruby:" for word in EACH}
        events = {word: EACH[word] for word in EACH if is_there[word]}
        found = {}
        for event, (verb, argument, method, _) in events.items():
            options = ["--weight", argument] if argument else []
            document = sampled(trace, target, f"{verb} 1000", "--on", event, *options)
            found[event] = below(document, method)
    assert found == {event: expected for event, (*_, expected) in events.items()}


def probes_of_ruby(pid: int) -> set[str]:
    found = find_probes(Process(pid))
    return {probe.full_name for probe in found if probe.provider == "ruby"}


@pytest.mark.parametrize("event", ["shop:sold", "uprobe:libc:getppid"])
def test_with_perf_uprobes(target: Target, trace: TRACE, event: str) -> None:
    verb, _, method, expected = EACH[event]
    perf = {"RBTRACE_ATTACH": "perf"}
    found = sampled(trace, target, f"{verb} 1000", "--on", event, env=perf)
    assert below(found, method) == expected


def test_several_on_one_processor_lose_nothing_in_silence(trace: TRACE) -> None:
    """They are preempted while their stacks are read and counts are collected."""
    words = ("taskset", "-c", "0", "ruby", f"-I{LIB}", EVENTS)
    options = ("--on", "shop:sold", "--subprocesses", "--yes", "--max-loss", 100)
    with closing(Target(*words)) as target:
        tracer = trace("stacks", target.pid, "--format", "json", "-i", 0.1, *options)
        assert target.step("crowd 20000") == "done"
        out, err, code = tracer.finish()
    assert code == 0, err
    documents = [json.loads(line) for line in out.splitlines()]
    counted = sum(document["weight"] for document in documents)
    failed = sum(document["lost"] for document in documents)
    assert counted + failed == 80_000
    assert failed <= 80


@pytest.mark.parametrize(
    ("event", "verb"),
    [("shop:sold", "fire"), ("uprobe:libc:getppid", "parent"), ("ruby:raise", "fail")],
)
def test_several_processes(target: Target, trace: TRACE, event: str, verb: str) -> None:
    if event == "ruby:raise" and not probes_of_ruby(target.pid):
        event, verb = "syscall:getppid", "parent"  # this Ruby was built without probes
    with closing(Target("ruby", f"-I{LIB}", EVENTS)) as other:
        pids = f"{target.pid},{other.pid}"
        tracer = trace("stacks", pids, "--on", event, "--format", "json")
        assert target.step(f"{verb} 500") == "done"
        assert other.step(f"{verb} 700") == "done"
        out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    found: Counter[int] = Counter()
    for row in document["stacks"]:
        found[document["threads"][row["thread"]]["pid"]] += row["weight"]
    assert found == {target.pid: 500, other.pid: 700}


def test_children_from_their_first_instruction(target: Target, trace: TRACE) -> None:
    options = ("--on", "syscall:getppid", "--subprocesses", "--format", "json")
    tracer = trace("stacks", target.pid, *options)
    assert target.step("family 250") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    assert (document["weight"], document["lost"]) == (1000, 0)


def test_children_are_found_late_by_functions(target: Target, trace: TRACE) -> None:
    options = ("--on", "uprobe:libc:getppid", "--subprocesses", "--format", "json")
    tracer = trace("stacks", target.pid, *options)
    assert target.step("family 250") == "done"
    assert target.step("parent 250") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "events of child processes are seen once they are found" in err
    document = json.loads(out)
    own = {n for n, one in enumerate(document["threads"]) if one["pid"] == target.pid}
    rows = [row for row in document["stacks"] if row["thread"] in own]
    assert sum(row["weight"] for row in rows) == 250


def test_a_glob(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "fire 1000", "--on", "shop:s*")
    assert (found["event"], found["weight"]) == ("shop:s*", 1000)


def test_a_program_that_becomes_another(trace: TRACE) -> None:
    with closing(Target("ruby", TARGETS / "stacks/walked.rb")) as target:
        tracer = trace("stacks", target.pid, "--on", "syscall:getppid")
        assert target.step("exec 2.5") == "again"
        assert target.step() == "done"
        _, err, code = tracer.finish()
    assert code == 0, err
    assert f"process {target.pid} executed another program" in " ".join(err.split())


def test_a_number_of_events(target: Target, trace: TRACE) -> None:
    tracer = trace("stacks", target.pid, "--on", "shop:sold", "-n", 100)
    assert target.step("fire 50") == "done"
    assert target.step("fire 50") == "done"
    out, err, code = tracer.result()
    assert code == 0, err
    assert out.endswith(" 100\n")


def test_a_program_of_ours() -> None:
    program = (
        "require 'tracepoint'; hit = Tracepoint.define(:hit, {}, provider: :ours);"
        " sleep 0.01 until hit.enabled?; 100.times { hit.fire }; sleep"
    )
    out, err, code = run(
        *("stacks", "--on", "ours:hit", "--format", "folded", "-n", 100),
        *("--", "ruby", f"-I{LIB}", "-e", program),
    )
    assert code == 0, err
    # Ruby 3.3 wrote Integer#times in Ruby.
    stack = (
        r"<main> -e;Integer#times (-e|<internal:numeric>);block in <main> -e;"
        r"Tracepoint::Probe#fire -e 100\n"
    )
    assert re.fullmatch(stack, out)


def test_a_costly_event_is_detached(target: Target, trace: TRACE) -> None:
    tracer = trace("stacks", target.pid, "--on", "shop:sold", "--format", "folded")
    target.tell("spin 1000")
    out, err, code = tracer.result()
    assert target.step() == "done"
    assert code == 1, err
    assert "Events#spin" in out
    said = " ".join(err.split())
    assert re.search(r"sold was detached after [\d,]+ events in .* 5 % of a CPU", said)
    assert "--every" in err


def test_a_costly_event_continues_with_yes(target: Target, trace: TRACE) -> None:
    options = ("--on", "shop:sold", "--yes", "-d", 1.5, "--format", "folded")
    tracer = trace("stacks", target.pid, *options)
    target.tell("spin 1000")
    out, err, code = tracer.result()
    assert target.step() == "done"
    assert (code, "Events#spin" in out) == (0, True), err
    assert re.search(r"[\d,]+ events per second at [\d.]+ µs each take", err), err


@pytest.mark.parametrize("verb", ["stacks", "record"])
def test_a_recording(verb: str, target: Target, trace: TRACE, tmp_path: Path) -> None:
    path = tmp_path / "out.rbrec"
    options = ("--on", "shop:sold", "--weight", "cents", "-o", path)
    tracer = trace(verb, target.pid, *options)
    assert target.step("fire 1000") == "done"
    _, err, code = tracer.finish()
    assert code == 0, err
    assert [sample.weight for sample in Recording(path)] == list(range(1, 1001))
    out, err, code = run("report", path, "--format", "json")
    document = json.loads(out)
    assert (document["unit"], document["weight"]) == ("weight", sum(range(1, 1001)))
    assert (document["event"], document["argument"]) == ("shop:sold", "cents")


WRONG = {
    ("--on", "shop:sould"): (4, "no probe matches shop:sould"),
    ("--on", "uprobe:libc"): (2, "uprobe:libc does not name a function"),
    ("--on", "uprobe:libnone:f"): (4, "the process has mapped no file libnone"),
    ("--on", "uprobe:libc:getppit"): (4, "has no function getppit"),
    ("--on", "uprobe:libc:memcpy"): (1, "memcpy cannot be probed"),
    ("--on", "tracepoint:sched"): (2, "tracepoint:sched does not name a tracepoint"),
    ("--on", "tracepoint:shed:sched_switch"): (4, "no tracepoint category shed"),
    ("--on", "tracepoint:sched:swich"): (4, "no tracepoint swich in sched"),
    ("--on", "syscall:writ"): (4, "no system call writ"),
    ("--on", "shop:sold", "--weight", "size"): (2, "shop:sold has no argument size"),
    ("--on", "shop:sold", "--weight", "name"): (2, "name is not an integer"),
    ("--on", "uprobe:libc:umask", "--weight", "arg9"): (2, "no argument arg9"),
    ("--on", "syscall:write", "--weight", "buf"): (2, "has no integer field buf"),
    ("--on", "shop:sold", "--mode", "wall"): (2, "--on and --mode"),
    ("--on", "shop:sold", "--rate", "10"): (2, "--on and --rate"),
    ("--on", "shop:sold", "--pause"): (2, "--on and --pause"),
    ("--on", "shop:sold", "--calls"): (2, "--calls and --on"),
    ("--on", "shop:sold", "--engine", "memory"): (2, "--engine memory and --on"),
    ("--on", "shop:sold", "--min-us", "5"): (2, "--min-us needs --mode offcpu"),
    ("--every", "10"): (2, "--every needs --on"),
    ("--on", "shop:sold", "--unit", "ns"): (2, "--unit needs --on and --weight"),
    ("--unit", "bytes"): (2, "--unit needs --on and --weight"),
    ("--weight", "cents"): (2, "--weight needs --on or --calls"),
    ("--calls", "--weight", "cents"): (2, "unknown weight for --calls: cents"),
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_what_is_wrong(target: Target, options: tuple[str, ...]) -> None:
    code, error = WRONG[options]
    _, err, actual = run("stacks", target.pid, *options, "-d", 5)
    assert (actual, error in err) == (code, True), err
