"""The results of the library ``rbtrace_py`` for probes, methods, and the agent."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from leftovers import Watched

import rbtrace_py
from processes import ROOT, Target, comes_true, read_line
from rbtrace_py.linux.probes import ProbeCache, StateReader, scan_probes
from rbtrace_py.linux.process import Process

pytestmark = pytest.mark.usefixtures("root")

Start = Callable[..., Target]
SKUS = {"tea": 10, "coffee": 6, "cake": 4}


@pytest.fixture
def till(start: Start) -> Target:
    return start("methods/till.rb")


def traced(target: Target) -> set[str]:
    """Return the names of the traced probes."""
    process = Process(target.pid)
    with StateReader(process) as reader:
        probes = scan_probes(process, ProbeCache()).probes
        return {probe.full_name for probe in probes if reader.state(probe).traced}


def by_key(result: rbtrace_py.Result) -> dict[object, int]:
    return {group.key: group.count for group in result.groups}


# ----------------------------------------------------------------- measuring


def test_a_latency_by_key(till: Target) -> None:
    with rbtrace_py.latency(till.pid, "checkout", by="sku") as measurement:
        assert traced(till) == {"shop:checkout__end"}
        till.step("now")
        assert by_key(measurement.result()) == SKUS
        till.step("now")
    assert traced(till) == set()
    result = measurement.result()
    assert by_key(result) == {key: 2 * count for key, count in SKUS.items()}
    assert (result.command, result.by, result.unit) == ("latency", "sku", "ns")
    assert (result.count, result.lost, result.losses) == (40, 0, {})
    assert result.counters["raised"] == 8
    for group in result.groups:
        assert group.series == "shop:checkout"
        assert 1_000_000 <= group.min <= group.mean <= group.max
        assert group.min <= group.percentile(50) <= group.percentile(99) <= group.max
        assert sum(count for _, _, count in group.histogram.buckets()) == group.count
    assert result.histogram.count == 40
    assert result.histogram.min == min(group.min for group in result.groups)


def test_a_latency_of_so_long_ends_with_the_processes(start: Start) -> None:
    tills = [start("methods/till.rb"), start("methods/till.rb")]
    for till in tills:
        till.tell("traced")
        till.tell("exit")
    pids = [till.pid for till in tills]
    result = rbtrace_py.latency(pids, "checkout", by="pid", seconds=60)
    assert by_key(result) == dict.fromkeys(pids, 20)
    assert result.pids == tuple(pids)


def test_counts_have_no_histogram(till: Target) -> None:
    with rbtrace_py.count(till.pid, "shop:*", filter='sku == "tea"') as measurement:
        till.step("now")
    result = measurement.result()
    found = {group.series: group.count for group in result.groups}
    expected = ("shop:checkout__begin", "shop:checkout__end", "shop:order")
    assert found == dict.fromkeys(expected, 10)
    assert result.counters["filtered"] == 10 + 10 + 6
    assert {(g.histogram.count, g.max, g.percentile(50)) for g in result.groups} == {
        (0, 0, 0)
    }
    assert result.histogram.count == 0


def test_a_count_ends_after_so_many(till: Target) -> None:
    with rbtrace_py.count(till.pid, "order") as measurement:
        till.tell("now")
        result = measurement.run(count=16)
        assert traced(till) == set()
        till.step("now")
        assert measurement.result() is measurement.run() is result
    assert result.count == 16


def test_intervals_are_apart(till: Target) -> None:
    with rbtrace_py.count(till.pid, "order") as measurement:
        till.step("now")
        intervals = measurement.intervals(0.05)
        assert next(intervals).count == 16
        assert next(intervals).count == 0
        till.step("now")
        till.process.kill()
        assert sum(result.count for result in intervals) == 16
    assert measurement.result().count == 32


def test_values_of_numbers_and_of_strings(till: Target) -> None:
    with (
        rbtrace_py.values(till.pid, "order", argument="cents") as cents,
        rbtrace_py.values(till.pid, "order", argument="sku") as skus,
    ):
        till.step("now")
    buckets = [(250, 250, 10), (320, 320, 6)]
    assert list(cents.result().histogram.buckets()) == buckets
    assert cents.result().unit == "integer"
    assert by_key(skus.result()) == {"tea": 10, "coffee": 6}


def test_methods_as_a_table(till: Target) -> None:
    with rbtrace_py.methods(till.pid, "Till#") as measurement:
        till.step("now")
    rows = {row.key: row for row in measurement.result().groups}
    calls = {"Till#serve": 1, "Till#order": 20, "Till#checkout": 20, "Till#pay": 20}
    assert {key: row.count for key, row in rows.items()} == calls
    assert {key: row.entries for key, row in rows.items()} == calls
    assert {key: row.histogram.count for key, row in rows.items()} == calls
    serve, pay = rows["Till#serve"], rows["Till#pay"]
    assert pay.total < rows["Till#checkout"].total < serve.total
    assert serve.own is None
    assert serve.max == serve.total
    assert pay.method is not None
    assert (pay.method.name, pay.method.owner) == ("pay", "Till")


def test_methods_come_from_the_agent_alone(start: Start) -> None:
    bare = start("methods/till.rb", "bare")
    with pytest.raises(rbtrace_py.NoSuchTarget, match="no agent in process"):
        rbtrace_py.methods(bare.pid, seconds=1)
    with rbtrace_py.methods(bare.pid, "Till#pay", attach=True) as measurement:
        bare.step("now")
    assert by_key(measurement.result()) == {"Till#pay": 20}
    assert rbtrace_py.detach_agent(bare.pid).tracer is None


def test_children_are_included(start: Start) -> None:
    target = start("probes/forking.rb")
    with rbtrace_py.count(target.pid, "child", subprocesses=True) as measurement:
        target.step("5")
    assert measurement.result().count == 5


def test_a_measurement_that_has_not_begun(till: Target) -> None:
    measurement = rbtrace_py.count(till.pid, "order")
    with pytest.raises(rbtrace_py.UsageError, match="has not begun"):
        measurement.result()
    assert traced(till) == set()
    with measurement:
        pass
    with pytest.raises(rbtrace_py.UsageError, match="once"), measurement:
        pass


def test_a_probe_that_comes_late(start: Start) -> None:
    target = start("probes/late.rb")
    timer = threading.Timer(0.05, target.step, ["define second"])
    timer.start()
    with rbtrace_py.count(target.pid, "second", wait=math.inf) as measurement:
        timer.join()
        target.step("fire second 7")
    assert by_key(measurement.result()) == {None: 7}
    with pytest.raises(rbtrace_py.NoSuchProbe):
        rbtrace_py.count(target.pid, "no_such", seconds=1)
    with pytest.raises(rbtrace_py.NoSuchProbe):
        rbtrace_py.count(target.pid, "no_such", seconds=1, wait=0.05)


# -------------------------------------------------------------------- events


def test_events_and_how_the_loop_ends(till: Target) -> None:
    """The remaining events wait for the next loop. Leaving the block detaches."""
    with rbtrace_py.trace(till.pid, "order") as events:
        till.step("now")
        first = []
        for event in events:
            first.append(event)
            if len(first) == 5:
                break
        assert traced(till) == {"shop:order"}
        rest = list(islice(events, 11))
    assert traced(till) == set()
    found = [*first, *rest]
    skus = ["tea"] * 10 + ["coffee"] * 6
    cents = {"tea": 250, "coffee": 320}
    assert [event.arguments for event in found] == [
        {"id": number, "sku": sku, "cents": cents[sku]}
        for number, sku in enumerate(skus)
    ]
    assert {(event.name, event.pid, event.tid) for event in found} == {
        ("shop:order", till.pid, till.pid)
    }
    times = [event.time_ns for event in found]
    assert times == sorted(times)
    assert (events.losses, events.counters["seen"]) == ({}, 16)
    assert list(events) == []


def test_break_detaches(till: Target) -> None:
    till.tell("traced")
    for event in rbtrace_py.trace(till.pid, "order"):
        assert traced(till) == {"shop:order"}
        assert event.arguments["id"] == 0
        break
    assert traced(till) == set()


@pytest.mark.parametrize("selectors", [(), ("Work.refuse",)])
def test_break_takes_the_hook_out(watched: Watched, selectors: tuple[str, ...]) -> None:
    """Selected methods are hooked one by one, so Ruby's list of hooks is unchanged."""
    before = watched.snapshot()
    for call in rbtrace_py.calls(watched.pid, *selectors):
        assert call.name in selectors or not selectors
        assert (watched.hooks() == before["hooks"]) is bool(selectors)
        break
    watched.comes_to(before)


def test_an_exception_detaches(till: Target) -> None:
    till.tell("traced")
    with pytest.raises(ZeroDivisionError):
        _divide_by_ids(rbtrace_py.trace(till.pid, "order"))
    assert traced(till) == set()


def _divide_by_ids(events: rbtrace_py.EventStream[rbtrace_py.Event]) -> None:
    with events:
        for event in events:
            number = event.arguments["id"]
            assert isinstance(number, int)
            assert 1 / number


def test_events_end_after_so_many_and_after_so_long(till: Target) -> None:
    till.tell("traced")
    assert len(list(rbtrace_py.trace(till.pid, "order", count=3))) == 3
    assert read_line(till.process.stdout) == "done"
    with rbtrace_py.trace(till.pid, "order", seconds=0.01) as events:
        till.step("now")
        assert len(list(events)) == 16
    assert traced(till) == set()


def test_exceptions(till: Target) -> None:
    with rbtrace_py.trace(till.pid, "raise", backtrace=True, count=4) as events:
        till.step("now")
        found = list(events)
    assert {event.arguments["class"] for event in found} == {"Till::Declined"}
    assert {event.arguments["message"] for event in found} == {"no more cake"}
    assert all(isinstance(event, rbtrace_py.RaiseEvent) for event in found)
    assert (events.losses, events.counters["seen"]) == ({}, 4)


def test_calls_are_nested(till: Target) -> None:
    with rbtrace_py.calls(till.pid, "Till#", seconds=60, count=61) as calls:
        till.step("now")
        found = list(calls)
    order = ["Till#pay", "Till#checkout", "Till#order"] * 20 + ["Till#serve"]
    assert [call.name for call in found] == order
    assert [call.depth for call in found] == [3, 2, 1] * 20 + [0]
    inner, outer = found[0], found[-1]
    assert outer.duration_ns
    assert inner.duration_ns
    assert outer.start_ns < inner.start_ns
    assert outer.duration_ns > inner.duration_ns > 1_000_000
    assert (inner.pid, inner.tid, inner.fiber) == (till.pid, till.pid, 1)
    assert Path(inner.path or "").name == "till.rb"
    assert (inner.is_c, inner.cpu_ns, inner.values) == (False, None, {})
    assert calls.losses == {}


def test_slow_calls(till: Target) -> None:
    """The outermost of 61 calls is slow. On a busy machine others may be, but not
    all."""
    found = []
    with rbtrace_py.calls(till.pid, "Till#", slow=0.015, seconds=60) as calls:
        till.step("now")
        for call in calls:
            found.append(call)
            if call.name == "Till#serve":
                break
    assert found[-1].name == "Till#serve"
    assert len(found) < 61
    assert min(call.duration_ns or 0 for call in found) >= 15_000_000
    with pytest.raises(rbtrace_py.UsageError):
        rbtrace_py.calls(till.pid, slow=1, slow_cpu=1)


# -------------------------------------------------------------------- inside


def test_code_in_the_process(till: Target) -> None:
    found = rbtrace_py.eval(till.pid, "puts 6; warn 7; 6 * 7")
    assert (found.value, found.class_name) == ("42", "Integer")
    assert (found.out, found.err) == ("6\n", "7\n")
    with pytest.raises(rbtrace_py.RubyError) as raised:
        rbtrace_py.eval(till.pid, "puts 1; raise ArgumentError, 'no'", file="a.rb")
    assert str(raised.value) == "ArgumentError: no"
    assert (raised.value.class_name, raised.value.message) == ("ArgumentError", "no")
    assert raised.value.backtrace[0].startswith("a.rb:1")
    assert raised.value.out == "1\n"


def test_memory_backtraces_and_probes(till: Target) -> None:
    assert (rbtrace_py.memory(till.pid).rss or 0) > 1 << 20
    threads = rbtrace_py.backtraces(till.pid)
    assert sum(thread.is_main for thread in threads) == 1
    listed = rbtrace_py.probes(till.pid, "shop:*")
    assert {each.probe.name: each.traced for each in listed} == {
        "checkout__begin": False,
        "checkout__end": False,
        "order": False,
    }


# ------------------------------------------------------------- confirmations


def test_irreversible_actions_need_yes(till: Target) -> None:
    message = "leaves the process slower until it exits"
    with pytest.raises(rbtrace_py.NotConfirmed, match=message) as refused:
        rbtrace_py.methods(till.pid, "sleep", c_calls=True, seconds=1)
    assert refused.value.hint == "Pass yes=True to do it anyway"
    with (
        pytest.raises(rbtrace_py.NotConfirmed, match=message),
        rbtrace_py.calls(till.pid, "sleep", c_calls=True),
    ):
        pass
    options = {"c_calls": True, "yes": True}
    with rbtrace_py.methods(till.pid, "Kernel#sleep", **options) as measurement:
        till.step("now")
    assert by_key(measurement.result()) == {"Kernel#sleep": 20}


def test_errors_before_anything_is_done(till: Target) -> None:
    with pytest.raises(rbtrace_py.NoSuchTarget):
        rbtrace_py.latency(1 << 22, "checkout", seconds=1)
    with pytest.raises(rbtrace_py.UsageError, match="no process given"):
        rbtrace_py.latency([], "checkout", seconds=1)
    with pytest.raises(rbtrace_py.NoSuchProbe, match="no probe matches chekout") as no:
        rbtrace_py.latency(till.pid, "chekout", seconds=1)
    assert no.value.hint.startswith("Did you mean shop:checkout")
    with pytest.raises(TypeError, match="bye"):
        rbtrace_py.latency(till.pid, "checkout", seconds=1, bye="sku")  # type: ignore
    with pytest.raises(rbtrace_py.RbtraceError, match="no argument prize"):
        rbtrace_py.values(till.pid, "order", argument="prize", seconds=1)


# ------------------------------------------------------------ Ctrl-C, the end


BLOCKING = [
    'rbtrace_py.latency(PID, "work", seconds=600)',
    'rbtrace_py.count(PID, "watched:*", seconds=600)',
    'rbtrace_py.values(PID, "event", argument="id", seconds=600)',
    "rbtrace_py.methods(PID, seconds=600)",
    'list(rbtrace_py.trace(PID, "event"))',
    'list(rbtrace_py.trace(PID, "raise"))',
    "for call in rbtrace_py.calls(PID): pass",
    "with rbtrace_py.methods(PID): time.sleep(600)",
    'with rbtrace_py.trace(PID, "event") as events:\n  for event in events: pass',
]
PROGRAM = """
import sys, time, rbtrace_py
PID = int(sys.argv[1])
print("ready", flush=True)
try:
    {}
finally:
    print("ended", flush=True)
"""


def is_in(watched: Watched) -> bool:
    """Return whether any part of a tracer is in the target."""
    now = watched.snapshot()
    return bool(now["hooks"] or now["probes"] or now["ruby"]["tracepoints"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["int", "kill"])
@pytest.mark.parametrize("code", BLOCKING)
def test_nothing_is_left(code: str, number: int, watched: Watched) -> None:
    before = watched.snapshot()
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM.format(code.replace("\n", "\n    ")),
            str(watched.pid),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    try:
        assert read_line(program.stdout) == "ready"
        assert comes_true(lambda: is_in(watched))
        program.send_signal(number)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    if number == signal.SIGINT:
        assert out == b"ended\n"
        assert err.rstrip().endswith(b"KeyboardInterrupt"), err
    watched.comes_to(before)


def test_a_measurement_continues_after_a_ctrl_c(watched: Watched) -> None:
    """A program that catches it has the results so far."""
    before = watched.snapshot()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with rbtrace_py.count(watched.pid, "event") as measurement:
        assert comes_true(lambda: measurement.result().count > 0)
        old = signal.signal(signal.SIGALRM, lambda number, frame: interrupt())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            measurement.run(seconds=math.inf)
        signal.signal(signal.SIGALRM, old)
        assert measurement.result().count > 0
    watched.comes_to(before)
