"""Selected methods are hooked one by one: same results, and other methods stay
untouched."""

from __future__ import annotations

import json
import random
import re
import select
import signal
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rubies
from commands import Tracer, answer, by_key, run
from processes import TIMEOUT, Target, comes_true, read_line, run_time, times
from rbtrace_py.agent.arming import Armed, ArmRequest
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.linux.process import Process
from rbtrace_py.model.calls import KIND_AT, CallKind
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets
from rubies import Running
from ruby_builds import MATRIX

Start = Callable[..., Target]
Trace = Callable[..., Tracer]

SELECTORS = ["Shop#", "Shop.", "Base#number", "Priced#price", "audit"]
SELECTORS += ["Kinds#", "Kinds.", "Tools.", "single", "Point#"]
STEPS = ("kinds", "called", "threads", "fibers", "exceptions")


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods/targeted.rb")


@pytest.fixture(scope="module", params=MATRIX)
def each(request: pytest.FixtureRequest) -> Iterator[Running]:
    with rubies.running(request.param, "methods/targeted.rb") as running:
        yield running


def trees(pid: int, target: Target, words: list[str], *steps: str) -> Any:
    """Return the calls of each stack in order, by name and depth, and the counters."""
    options = CallsOptions(select=selectors_of(words, []), confirm=lambda text: True)
    found: dict[int, list[tuple[str, int, str]]] = defaultdict(list)
    with closing(Calls(Targets({pid: Process(pid)}), options)) as session:
        session.start()
        for step in steps:
            assert target.step(step).startswith("done")
        notes = list(session.notes)
        for reported in session.drain():
            event = reported.event
            if event.what in (CallEventKind.RETURNED, CallEventKind.ENDED):
                call = (reported.method.full_name, event.depth, event.what.name)
                found[event.stack.number].append(call)
        counters = session.counters()
    assert counters["lost"] == 0
    return sorted(found.values()), notes


def test_the_same_trees(each: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same as with the hook on all methods."""
    targeted, notes = trees(each.pid, each.target, SELECTORS, *STEPS)
    assert re.search(r"process \d+: \d\d methods hooked and no other", notes[0])
    all_methods(monkeypatch)
    everything, notes = trees(each.pid, each.target, SELECTORS, *STEPS)
    assert not any("hooked" in note for note in notes)
    assert targeted == everything
    names = {name for calls in targeted for name, _, _ in calls}
    assert {"Kinds#<=>", "Kinds#hash", "Kinds.inherited", "Tools.helper"} < names


def all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hook all methods, even if selectors name some."""
    monkeypatch.setattr(ArmRequest, "names_methods", property(lambda self: False))


def table(pid: int, target: Target, *steps: str) -> dict[str, tuple[int, int, int]]:
    """Return by method how many calls began, returned, and are in its histogram."""
    selected = MethodOptions(
        "method", select=selectors_of(SELECTORS, []), confirm=lambda text: True
    )
    targets = Targets({pid: Process(pid)})
    with Methods(targets, "latency", ["method"], selected) as session:
        for step in steps:
            assert target.step(step).startswith("done")
        session.finish()
        result = session.snapshot()
    assert (result.counters["no_block"], result.counters["no_stream"]) == (0, 0)
    return {
        str(group.key): (
            group.entries,
            group.count,
            group.distribution.count if group.distribution else 0,
        )
        for group in result.groups
    }


def test_the_same_table(each: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same as with the hook on all methods. Each call is in a histogram."""
    targeted = table(each.pid, each.target, *STEPS)
    all_methods(monkeypatch)
    assert targeted == table(each.pid, each.target, *STEPS)
    assert all(calls == found for _, calls, found in targeted.values())
    assert targeted["Kinds#fails_in_a_block"] == (2, 2, 2)


def evaluated(target: Target, code: str) -> str:
    """Return the value of a line of Ruby that runs in the program's own thread."""
    return target.step(code).removeprefix("done").strip()


def counted(document: Any, *keys: str) -> dict[str, int]:
    found = by_key(document)
    return {key: found.get(key, 0) for key in keys}


def global_events(pid: int) -> int:
    """Return the events for which all methods have been hooked since the start."""
    library = r"^(\w+)-(\w+) \S+ 0+ \S+ \d+ +\S*libruby\S*$"
    maps = Path(f"/proc/{pid}/maps").read_text()
    start, end = re.search(library, maps, re.MULTILINE).groups()
    path = f"/proc/{pid}/map_files/{start}-{end}"
    words = (["nm", "-D", path], ["nm", path])
    listing = "".join(subprocess.check_output(each, text=True) for each in words)
    found = re.search(r"(\w+) [Bb] ruby_vm_event_enabled_global_flags", listing)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(int(start, 16) + int(found[1], 16))
        return struct.unpack("<I", memory.read(4))[0]


CALL_AND_RETURN = 0x18
NAMES_FLAGS = [
    *([rubies.HERE] if rubies.minor(rubies.HERE) < "3.3" else []),
    *map(rubies.chroot, ("2.7", "3.1", "4.0.5-shared-yjit")),
]
"""From 3.3 on, Ruby does not export its flags: only an unstripped library, such as
the one built from source, has a name for them."""


@pytest.mark.parametrize("name", NAMES_FLAGS)
def test_no_other_method_is_hooked(name: str, trace: Trace) -> None:
    """Other methods are not hooked even for a moment: Ruby never undoes the effects."""
    words = ["-m", "Shop#pay", "-m", "total"]
    with rubies.running(name, "methods/targeted.rb") as each:
        for command in (
            ["latency"],
            ["calls", "--slow", "1000"],
            ["calls"],
            ["calls", "--c-calls", "--yes"],
            ["stacks", "--calls"],
        ):
            tracer = trace(command[0], each.pid, *words, *command[1:])
            each.target.step("kinds")
            assert tracer.finish()[2] == 0
        run("calls", each.pid, "-m", "Shop#pay(self, amount)", "-d", 0.1)
        assert global_events(each.pid) & CALL_AND_RETURN == 0
        trace("count", each.pid, "method", "--yes").finish()
        assert global_events(each.pid) & CALL_AND_RETURN


@pytest.mark.parametrize("name", [*map(rubies.chroot, ("yjit", "zjit"))])
def test_what_stays_of_compiled_code(name: str, trace: Trace) -> None:
    """ZJIT of Ruby 4.0 compiles a method at most twice."""
    with rubies.running(f"4.0.5-shared-{name}", "methods/targeted.rb") as each:
        for command in (["calls"], ["count", "method"]):
            tracer = trace(command[0], each.pid, *command[1:], "-m", "Shop#pay")
            said = " ".join(tracer.finish()[1].split())
            is_said = "compiled code is thrown away (zjit)" in said
            assert is_said is (name == "zjit"), said


ENABLED = "ObjectSpace.each_object(TracePoint).select(&:enabled?)"
NEW = f"({ENABLED}.map(&:object_id) - $before)"


def defined(running: Running, code: str, methods: int = 1) -> None:
    """Run code, and wait until ``count`` more methods are hooked."""
    target = running.target
    evaluated(target, f"$before = []; $before = {NEW}; nil")
    evaluated(target, code)
    wait = f"sleep 0.005 until {NEW}.size >= {methods}"
    evaluated(target, f"require 'timeout'; Timeout.timeout({TIMEOUT}) {{ {wait} }}")


def lines_until_called(
    running: Running, tracer: Tracer, code: str, text: str
) -> list[str]:
    """Repeat the call until the tracer prints a line with the text. Return the
    lines."""
    stream, lines = tracer.process.stdout, list[str]()

    def is_told() -> bool:
        evaluated(running.target, code)
        while select.select([stream], [], [], 0)[0]:
            lines.append(read_line(stream))
            if text in lines[-1]:
                return True
        return False

    assert comes_true(is_told)
    return lines


def test_methods_that_come_later(each: Running, trace: Trace) -> None:
    """Methods are defined, redefined, and prepended, and a class is created again."""
    words = ["-m", "Later#", "-m", "Later.", "-m", "newly"]
    tracer = trace("count", each.pid, "method", *words, "--by", "method", "--json")
    defined(each, "class Later; def run; 1; end; def self.find; end; end", 2)
    evaluated(each.target, "Later.find; 5.times { Later.new.run }")
    defined(each, "class Later; def run; 2; end; end")
    evaluated(each.target, "6.times { Later.new.run }")
    evaluated(each.target, "Object.send(:remove_const, :Later)")
    defined(each, "class Later; def run; 3; end; end")
    evaluated(each.target, "7.times { Later.new.run }")
    evaluated(each.target, "module Before; def run; super; end; end")
    evaluated(each.target, "Later.prepend(Before); 8.times { Later.new.run }")
    defined(each, "module Before; def newly; 4; end; end")
    evaluated(each.target, "9.times { Later.new.newly }")
    document = answer(tracer)
    evaluated(each.target, "Object.send(:remove_const, :Later)")
    assert by_key(document) == {"Later.find": 1, "Later#run": 26, "Before#newly": 9}
    counters = document["counters"]
    assert (document["lost"], counters["targeted"], counters["left_out"]) == (0, 1, 0)


def test_a_replaced_method_is_let_go(target: Target, trace: Trace) -> None:
    """It is released once its last open call has returned. This return is reported."""
    evaluated(target, "class Later; def run(from); from.pop; end; end")
    tracer = trace("calls", target.pid, "-m", "Later#", "--json")
    evaluated(target, "$from = Queue.new")
    evaluated(target, "$thread = Thread.new { Later.new.run($from) }")
    evaluated(target, "Thread.pass until $from.num_waiting == 1")
    evaluated(target, f"$old = {ENABLED}.first")
    running = Running(target, target.pid)
    for number in range(3):
        defined(running, f"class Later; def run(from); {number}; end; end")
    assert evaluated(target, "$old.enabled?") == "true"
    evaluated(target, "$from << 1; $thread.join; sleep 0.01 while $old.enabled?")
    assert evaluated(target, f"{ENABLED}.size") == "1"
    call, end = map(json.loads, tracer.finish()[0].splitlines())
    assert (call["method"], end["count"], end["lost"]) == ("Later#run", 1, 0)
    assert evaluated(target, f"{ENABLED}.size") == "0"


def test_a_call_that_outlasts_its_hook(target: Target, trace: Trace) -> None:
    """Its return is not reported. The next call in its place counts as a separate
    call."""
    evaluated(target, "class Later; def run(from); from.pop; end; end")
    grace = "Tracepoint::Agent::Targets.send(:remove_const, :GRACE)"
    evaluated(target, f"{grace}; Tracepoint::Agent::Targets.const_set(:GRACE, 0.0)")
    tracer = trace("calls", target.pid, "-m", "Later#", "--json")
    evaluated(target, f"$from = Queue.new; $old = {ENABLED}.first")
    evaluated(target, "$thread = Thread.new { 2.times { Later.new.run($from) } }")
    evaluated(target, "Thread.pass until $from.num_waiting == 1")
    evaluated(target, "class Later; def run(from); from.pop; 2; end; end")
    evaluated(target, f"sleep 0.01 until {ENABLED} != [$old] && !$old.enabled?")
    again = "Thread.pass until $from.empty? && $from.num_waiting == 1"
    evaluated(target, f"$from << 1; {again}; $from << 1; $thread.join")
    *calls, end = map(json.loads, tracer.finish()[0].splitlines())
    assert [call["event"] for call in calls] == ["unfinished", "call"]
    assert (end["count"], end["lost"]) == (2, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_hooked(number: int, target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "-m", "Shop#")
    assert int(evaluated(target, f"{ENABLED}.size")) > 10
    tracer.finish(number)
    evaluated(target, f"sleep 0.01 until {ENABLED}.empty?")


HOOKS = "TracePoint.stat.values.sum(&:first)"
"""The hooks that Ruby calls for all methods, of any TracePoint."""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("words", "events"),
    [(["-m", "Many#"], "[900, 0]"), (["--yes"], "[0, 1]")],
    ids=["targeted", "all"],
)
def test_a_kill_at_any_moment(
    words: list[str], events: str, each: Running, trace: Trace
) -> None:
    """The kill may come while methods are being hooked. None stays hooked."""
    target = each.target
    evaluated(
        target, "class Many; 900.times { |n| class_eval %(def run#{n}; end) }; end"
    )
    tracer = trace("latency", each.pid, "method", *words)
    until_armed = run_time(tracer.process.pid)
    assert tracer.finish()[2] == 0
    chance = random.Random(14)
    end = time.monotonic() + times(60)
    while time.monotonic() < end:
        tracer = trace("latency", each.pid, "method", *words, waits=False)
        # Any moment of its CPU time must be safe, also once it is armed and waits.
        moment = chance.uniform(0, 1.1) * until_armed
        comes_true(partial(has_run, tracer.process.pid, moment), timeout=1)
        tracer.process.kill()
        tracer.process.wait(TIMEOUT)
        assert comes_true(lambda: not is_hooked(target))
    tracer = trace("latency", each.pid, "method", *words)
    assert evaluated(target, f"[{ENABLED}.size, {HOOKS}]") == events
    assert tracer.finish()[2] == 0
    assert not is_hooked(target)


def has_run(pid: int, ns: float) -> bool:
    return run_time(pid) >= ns


def is_hooked(target: Target) -> bool:
    """Return whether any part of an arming is in the process."""
    code = f"[Tracepoint::Agent.armed_by, {ENABLED}.size, {HOOKS}]"
    return evaluated(target, code) != "[nil, 0, 0]"


def test_a_stop_does_not_wait_for_the_next_search(each: Running, trace: Trace) -> None:
    """The agent's thread is waiting for the search, which is far away, and ends at
    once."""
    target = each.target
    evaluated(target, "$agent = Tracepoint::Agent::Targets; nil")
    evaluated(target, "$old = $agent::PERIODS, $agent::LONGEST_PAUSE")
    far = "[$agent::PERIODS.transform_values { 600.0 }, 600.0]"
    define = (
        "%i[PERIODS LONGEST_PAUSE].zip({}) "
        "{{ |name, value| $agent.send(:remove_const, name); "
        "$agent.const_set(name, value) }}"
    )
    evaluated(target, define.format(far))
    tracer = trace("calls", each.pid, "-m", "Shop#")
    inner = ["@current", "@watcher", "@thread"]
    path = "".join(f".instance_variable_get(:{name})" for name in inner)
    evaluated(target, f"$watcher = $agent{path}; Thread.pass until $watcher.stop?")
    assert tracer.finish()[2] == 0
    evaluated(target, "$watcher.join; nil")
    evaluated(target, define.format("$old"))


def test_more_than_a_thousand(target: Target, trace: Trace) -> None:
    """All methods are hooked then, if the user agrees."""
    many = "class Many; 1001.times { |n| class_eval %(def run#{n}; end) }; end"
    evaluated(target, many)
    for command in ("count", "calls"):
        _, err, code = run(command, target.pid, "-m", "Many#")
        said = " ".join(err.split())
        assert "hooked one by one: more than 1000 methods match. Hooking" in said
        assert ("Use --yes to do it anyway" in said, code) == (True, 1)
    assert not is_hooked(target)
    tracer = trace("count", target.pid, "-m", "Many#", "--json", "--yes")
    evaluated(target, "1001.times { |n| Many.new.send(%(run#{n})) }")
    out, err, _ = tracer.finish()
    assert json.loads(out)["count"] == 1001
    assert "selected alone: more than 1000 methods match" in " ".join(err.split())


def test_selectors_that_match_nothing(each: Running, trace: Trace) -> None:
    """Other selectors match. The class of one is missing, and another names a C
    method."""
    words = ["Shop#hidden", "Shop#totl", "Shp#total", "Nowhere#run", "String#center"]
    for command in ("calls", "count"):
        selectors = [part for word in [*words, "audit"] for part in ("-m", word)]
        tracer = trace(command, each.pid, *selectors)
        _, err, code = tracer.finish()
        said = " ".join(err.replace("rbtrace-py:", "").split())
        assert code == 0
        assert re.search(r"process \d+: 2 methods hooked and no other", said)
        assert "String#center: the matching methods have no Ruby code" in said
        missing = "Shop#totl, Shp#total, Nowhere#run yet (did you mean Shop#total"
        assert f"no method matches {missing}" in said
    _, err, _ = run("calls", each.pid, "-m", *words[1:], "none", "-d", "10ms")
    said = " ".join(err.split())
    assert "no method matches Shop#totl, Shp#total, Nowhere#run and 1 more yet" in said
    tracer = trace("calls", each.pid, "-m", *words[:2], "--c-calls", "--yes")
    said = " ".join(tracer.finish()[1].split())
    assert "no method matches Shop#totl yet (did you mean Shop#total" in said


def test_a_method_that_ruby_refuses(each: Running, trace: Trace) -> None:
    """Ruby 2.7 refuses the methods that Struct defines. Other targets fire as
    before."""
    assert trace("count", each.pid, "-m", "Point#").finish()[2] == 0
    tracer = trace("count", each.pid, "-m", "Base#number", "--json")
    evaluated(each.target, "Base.new.number(1)")
    assert json.loads(tracer.finish()[0])["count"] == 1


def test_methods_made_of_blocks(each: Running, trace: Trace) -> None:
    """They share their instructions. Up to Ruby 3.1, they are left out and named."""
    is_old = evaluated(each.target, "RUBY_VERSION") < "3.2"
    tracer = trace("calls", each.pid, "-m", "Made#", "--json")
    each.target.step("made")
    out, err, code = tracer.finish()
    *calls, end = map(json.loads, out.splitlines())
    names = [call["method"] for call in calls]
    both = ["Made#step", "Made#run", "Made#step", "Made#walk"]
    assert names == (both[::2] if is_old else both)
    assert (code, end["lost"]) == (0, int(is_old))
    said = " ".join(err.replace("rbtrace-py:", "").split())
    hooked = "1 method hooked" if is_old else "3 methods hooked"
    assert f"{hooked} and no other" in said
    assert ("are left out: Made#run, Made#walk" in said) is is_old


def test_methods_made_of_blocks_alone(each: Running, trace: Trace) -> None:
    """Up to Ruby 3.1, all methods are hooked for them, if the user agrees."""
    is_old = evaluated(each.target, "RUBY_VERSION") < "3.2"
    words = ("calls", each.pid, "-m", "Made#run", "Made#walk", "Made#none")
    if is_old:
        _, err, code = run(*words)
        said = " ".join(err.split())
        assert "define_method made Made#run" in said
        assert ("Use --yes to do it anyway" in said, code) == (True, 1)
        assert not is_hooked(each.target)
    tracer = trace(*words, "--json", "--yes")
    foreign = "$foreign = TracePoint.new(:call) { $told += 1 }; $told = 0"
    evaluated(each.target, foreign)
    evaluated(each.target, "$foreign.enable(target: Made.instance_method(:run))")
    each.target.step("made")
    out, err, _ = tracer.finish()
    each.target.step("made")
    told = evaluated(each.target, "$foreign.disable; $told")
    *calls, end = map(json.loads, out.splitlines())
    names = [call["method"] for call in calls]
    assert names == ["Made#run", "Made#walk"]
    assert (end["lost"], told) == (0, "2")
    assert ("define_method made" in err) is is_old
    each.target.step("made")


def test_a_name_in_a_large_program(start: Start, trace: Trace, tmp_path: Path) -> None:
    """ActiveSupport before 7 replaces Class#subclasses by a slow method."""
    file = tmp_path / "subclasses.rb"
    file.write_text("class Class; def subclasses = ($ran = true) && []; end")
    target = start("methods/targeted.rb", env={"RUBYOPT": f"-r{file}"})
    evaluated(target, "$kept = Array.new(200_000) { Object.new }; GC.start")
    tracer = trace("calls", target.pid, "-m", "audit", "--json")
    evaluated(target, "Shop.new.pay(0)")
    *calls, end = map(json.loads, tracer.finish()[0].splitlines())
    assert [call["method"] for call in calls] == ["Audited#audit"]
    assert (end["lost"], evaluated(target, "$ran.inspect")) == (0, "nil")


def test_a_child_has_none_of_it(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "-m", "Shop#", "--json")
    count = f"fork {{ w << {ENABLED}.size; Shop.new.pay(2); exit! }}"
    assert evaluated(target, f"r, w = IO.pipe; {count}; w.close; r.read") == "0"
    assert json.loads(tracer.finish()[0])["count"] == 0


@pytest.fixture
def armed(target: Target) -> Iterator[Armed]:
    what = ArmRequest(HookMode.RING, select=selectors_of(["Shop#hidden"], []))
    with Process(target.pid) as process, Armed(process, what) as armed:
        assert armed.targets == 1
        yield armed


def kinds(armed: Armed) -> list[int]:
    """Return the kinds of the call records."""
    shared = armed.shared
    found: list[int] = []
    for each in shared.streams():
        records = shared.records(each.index, 0, each.published)
        found += records[KIND_AT :: shared.record_size]
    return [kind for kind in found if kind <= CallKind.RETURN]


def test_two_targets_of_one_method(target: Target, armed: Armed) -> None:
    """This never happens. If it did, each call would be reported once."""
    code = "$other = Tracepoint::Agent::Native.target(60_000);"
    code += "$other.enable(target: Shop.instance_method(:hidden))"
    evaluated(target, code)
    evaluated(target, "2.times { Shop.new.send(:hidden) }; $other.disable")
    assert kinds(armed) == [CallKind.ENTRY, CallKind.RETURN] * 2
    assert armed.counters().duplicates == 2


def test_a_target_of_an_arming_before(target: Target) -> None:
    """It is silent while all methods are hooked, as their hook reports its calls."""
    code = "$before = Tracepoint::Agent::Native.target(60_000);"
    code += "$before.enable(target: Shop.instance_method(:hidden))"
    with (
        Process(target.pid) as process,
        Armed(process, ArmRequest(HookMode.TABLE)) as armed,
    ):
        assert armed.targets is None
        evaluated(target, code)
        evaluated(target, "2.times { Shop.new.send(:hidden) }; $before.disable")
        armed.learn()
        rows = armed.shared.methods(0, armed.counters().methods)
        calls = {armed.method(row.index).full_name: row.entries for row in rows}
        assert calls["Shop#hidden"] == 2


@pytest.mark.skipif(rubies.minor(rubies.HERE) < "3.0", reason="no Ractors there")
def test_calls_in_another_ractor(target: Target, armed: Armed) -> None:
    """From 4.0 on, Ruby does not call the hook there. Before, the agent drops the
    calls."""
    ractor = "$VERBOSE = nil; ractor = Ractor.new { Shop.new.send(:hidden) }"
    wait = "ractor.respond_to?(:value) ? ractor.value : ractor.take"
    evaluated(target, f"2.times {{ {ractor}; {wait} }}")
    evaluated(target, "Shop.new.send(:hidden)")
    assert kinds(armed) == [CallKind.ENTRY, CallKind.RETURN]
    armed.disarm()
    expected = 4 if rubies.minor(rubies.HERE) < "4.0" else 0
    assert armed.counters().in_other_ractors == expected


def redefine(running: Running) -> list[str]:
    """Redefine and call a class's methods, while memory is compacted and garbage is
    freed. Return the methods in the order of the calls."""
    define = "Redefined.class_eval(%(def run#{n % 3}; #{n}; end))"
    loop = f"{define}; Redefined.new.send(%(run#{{n % 3}}))"
    collect = "GC.compact if n % 200 == 0"
    evaluated(running.target, "class Redefined; end")
    evaluated(running.target, f"1_000.times {{ |n| {loop}; {collect}; sleep 0.001 }}")
    return [f"Redefined#run{n % 3}" for n in range(1_000)]


def test_a_method_that_is_redefined_all_the_time(each: Running, trace: Trace) -> None:
    tracer = trace("calls", each.pid, "-m", "Redefined#", "--json")
    names = redefine(each)
    evaluated(each.target, "Redefined.class_eval('def run0; end', 'last.rb', 1)")
    before = lines_until_called(each, tracer, "Redefined.new.run0", '"last.rb"')
    evaluated(each.target, "5.times { Redefined.new.run0 }")
    *calls, end = map(json.loads, [*before, *tracer.finish()[0].splitlines()])
    assert {call["method"] for call in calls} <= set(names)
    assert [call["method"] for call in calls[-5:]] == ["Redefined#run0"] * 5
    assert end["lost"] == 0


def test_a_redefined_method_where_all_are_hooked(each: Running, trace: Trace) -> None:
    tracer = trace("calls", each.pid, "--json", "--yes")
    names = redefine(each)
    *calls, end = map(json.loads, tracer.finish()[0].splitlines())
    found = [call["method"] for call in calls]
    assert [name for name in found if name.startswith("Redefined")] == names
    assert end["lost"] == 0
