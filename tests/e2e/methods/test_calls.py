"""``calls``: known programs give exact call trees on each Ruby."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal

import rubies
from commands import Tracer, run, without_times
from processes import LIB, MAIN, ROOT, TARGETS, TIMEOUT, Target, comes_true
from rbtrace_py.agent.arming import Selector
from rbtrace_py.linux.process import parse_status
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.targets.targets import Targets
from ruby_builds import EACH

Start = Callable[..., Target]
Trace = Callable[..., Tracer]

TREES = """\
Object#trees
  Plain#factorial
    Plain#factorial
      Plain#factorial <>
    Plain#factorial <>
  Plain#factorial <>
  Plain#yields
    Tools.help <>
    Plain#leaf <>
  Plain#yields <>
  Plain#rescues
    Plain#fails <>
    Plain#leaf <>
    Plain#leaf <>
  Plain#rescues <>
  Plain#catches
    Plain#throws <>
  Plain#catches <>
  Plain#breaks
    Plain#yields <>
  Plain#breaks <>
  Plain#made
    Plain#leaf <>
  Plain#made <>
  Plain#method_missing
    Plain#leaf <>
  Plain#method_missing <>
  Plain#leaf <>
  Plain.build
    Plain#leaf <>
  Plain.build <>
  Child#leaf
    Plain#leaf <>
  Child#leaf <>
  #<refinement:String@Louder>#shout
    Tools.help <>
  #<refinement:String@Louder>#shout <>
  #<Object:0x…>.alone <>
Object#trees <>

"""


@pytest.fixture
def target(start: Start) -> Target:
    return start("methods/calls.rb")


def masked(text: str) -> str:
    """Without times."""
    text = without_times(text)
    return re.sub(r"^\d\d:\d\d:\d\d\.\d{6}", "TIME", text, flags=re.MULTILINE)


def shown(tracer: Tracer, target: Target, *steps: str) -> str:
    """Return what calls prints for these steps, without times."""
    for step in steps:
        assert target.step(step).startswith("done")
    out, err, code = tracer.finish()
    assert code == 0, err
    return masked(out)


def calls_of(out: str) -> list[Any]:
    """Return the calls of ``--json`` and its last line."""
    found = [json.loads(line) for line in out.splitlines()]
    assert found[-1]["schema"] == "rbtrace-py/calls-end"
    return found


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str, trace: Trace) -> None:
    """Trees, ten threads, fibers, and C methods are all exact."""
    with rubies.running(name, "methods/calls.rb") as running:
        is_old = rubies.minor(name) < "3.2"
        _check_all(running.target, running.pid, trace, is_old)


def _check_all(target: Target, pid: int, trace: Trace, is_old: bool) -> None:
    assert shown(trace("calls", pid, "--yes"), target, "trees") == TREES
    words = ["-m", "Object#", "Plain#", "upcase", "reverse", "--c-calls", "--yes"]
    tracer = trace("calls", pid, *words, "--json")
    for step in ("threads", "fibers", "strings"):
        target.step(step)
    events = calls_of(tracer.finish()[0])
    threads = [
        [("Plain#leaf", n + 1), *(("Object#in_thread", n - d) for d in range(n + 1))]
        for n in range(10)
    ]
    fiber = [("Plain#leaf", 1), ("Object#generate", 0)]
    main = [("Object#turns", 0), ("String#upcase", 0), ("String#reverse", 0)]
    found = sorted(_by_stack(events).values())
    assert found == sorted([*threads, fiber, fiber, main])
    end = events[-1]
    # Up to Ruby 3.1, Plain#made is left out, because define_method made it.
    assert end["lost"] == end["counters"]["left_out"] == is_old
    assert end["count"] == 65 + 4 + 3


def _by_stack(events: list[Any]) -> dict[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for event in events[:-1]:
        assert event["event"] == "call"
        found[event["stack"]].append((event["method"], event["depth"]))
    return found


def test_fibers(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--json")
    target.step("fibers")
    events = calls_of(tracer.finish()[0])
    fiber = [("Plain#leaf", 1), ("Object#generate", 0)]
    found = sorted(_by_stack(events).values(), key=len)
    assert found == [[("Object#turns", 0)], fiber, fiber]
    assert {event["tid"] for event in events[:-1]} == {target.pid}
    assert {event["fiber"] for event in events[:-1]} == {1, 2, 3}


def test_fibers_in_text(target: Target, trace: Trace) -> None:
    out = shown(trace("calls", target.pid), target, "fibers")
    pid, second, third = (f"{target.pid}{s}".rjust(8) for s in ("", ".2", ".3"))
    assert out == (
        f"{pid} Object#turns\n"
        f"{second} Object#generate\n"
        f"{third} Object#generate\n"
        f"{second}   Plain#leaf <>\n"
        f"{second} Object#generate <>\n\n"
        f"{third}   Plain#leaf <>\n"
        f"{third} Object#generate <>\n\n"
        f"{pid} Object#turns <>\n\n"
    )


def test_by_thread(target: Target, trace: Trace) -> None:
    out = shown(trace("calls", target.pid, "--by-thread"), target, "fibers", "last")
    assert out == (
        f"--- thread {target.pid}.2\n"
        "Object#generate\n  Plain#leaf <>\nObject#generate <>\n\n"
        f"--- thread {target.pid}.3\n"
        "Object#generate\n  Plain#leaf <>\nObject#generate <>\n\n"
        f"--- thread {target.pid}\n"
        "Object#turns <>\n\nTiny#last <>\n\n"
    )


def test_c_methods(target: Target, trace: Trace) -> None:
    words = ["-m", "upcase", "-m", "Tiny#", "String#reverse", "--c-calls", "--yes"]
    tracer = trace("calls", target.pid, *words)
    target.step("strings")
    target.step("last")
    out, err, code = tracer.finish()
    assert masked(out) == "String#upcase <>\nString#reverse <>\nTiny#last <>\n"
    assert "2 methods hooked, and all that are written in C" in err
    assert "calls of C methods stay slower" in err
    assert code == 0


def test_c_methods_alone(target: Target, trace: Trace) -> None:
    """The notes do not suggest the option that is already given."""
    words = ["-m", "String#upcase", "--c-calls", "--yes"]
    for command in ("calls", "count"):
        tracer = trace(command, target.pid, *words)
        target.step("strings")
        _, err, code = tracer.finish()
        said = " ".join(err.replace("rbtrace-py:", "").split())
        assert code == 0
        assert "all methods written in C hooked and no other" in said
        assert "--c-calls" not in said


def test_irreversible_actions_need_a_yes(target: Target) -> None:
    out, err, code = run("calls", target.pid, "--c-calls")
    assert (out, code) == ("", 1)
    assert "slower until it exits" in " ".join(err.split())
    assert "--yes" in err
    assert target.step("armed") == "done no"


def test_selected_methods(target: Target, trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("Plain.  # class methods\nTools.help\n")
    tracer = trace("calls", target.pid, "-c", path, "-m", "throws", "alone")
    assert shown(tracer, target, "trees") == (
        "Tools.help <>\nPlain#throws <>\nPlain.build <>\nTools.help <>\n"
        "#<Object:0x…>.alone <>\n"
    )


def test_slow_calls(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--slow", 800, "-t")
    assert shown(tracer, target, "last", "slow", "last") == (
        "TIME   Timed#waits <>\nTIME Timed#outer <>\n\n"
    )


def test_slow_methods(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--slow-methods", "Timed#outer")
    assert shown(tracer, target, "slow", "waits") == "Timed#outer <>\n"


def test_slow_cpu(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--slowcpu", 250, "--json")
    for step in ("waits", "burns", "last"):
        target.step(step)
    (event, _) = calls_of(tracer.finish()[0])
    assert event["method"] == "Timed#burns"
    assert 400_000_000 <= event["cpu_ns"] <= event["duration_ns"]


@pytest.mark.parametrize("name", EACH)
def test_garbage_collection_in_a_slow_call(name: str, trace: Trace) -> None:
    """A fast call in it collects garbage and is itself left out."""
    with rubies.running(name, "methods/calls.rb") as running:
        tracer = trace("calls", running.pid, "--gc", "--slow", 800, "--json", "--yes")
        running.target.step("collect slowly")
        events = calls_of(tracer.finish()[0])[:-1]
    outer = next(e for e in events if e.get("method") == "Timed#collects_and_waits")
    inside = [e for e in events if (e["depth"], e["stack"]) == (1, outer["stack"])]
    *collections, waits = inside
    assert waits["method"] == "Timed#waits"
    assert collections
    assert {event["event"] for event in collections} == {"gc"}
    assert all(e["time_ns"] > outer["time_ns"] for e in collections)
    assert all(e["time_ns"] < waits["time_ns"] for e in collections)


def test_garbage_collection(target: Target, trace: Trace) -> None:
    """Ruby and the agent's own thread may also collect garbage at other times."""
    tracer = trace("calls", target.pid, "--gc", "-m", "Timed#collects", "--json")
    target.step("collect")
    events = calls_of(tracer.finish()[0])[:-1]
    (call,) = [event for event in events if event["event"] == "call"]
    assert call["method"] == "Timed#collects"
    inside = [event for event in events if event["depth"] == 1]
    assert inside
    assert {event["event"] for event in inside} == {"gc"}
    assert 0 < sum(e["duration_ns"] for e in inside) < call["duration_ns"]


def test_garbage_collection_in_text(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--gc", "-m", "Timed#collects", "--by-thread")
    text = shown(tracer, target, "collect")
    found = re.search(r"Timed#collects\n((  garbage_collect <>\n)+)Timed#c", text)
    assert found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--no-duration"],
            "Timed#outer\n  Timed#quick\n  Timed#waits\nTimed#outer\n\n",
        ),
        (
            ["-r", "1"],
            "Timed#outer\n Timed#quick <>\n Timed#waits <>\nTimed#outer <>\n\n",
        ),
        (
            ["-t"],
            "TIME Timed#outer\nTIME   Timed#quick <>\nTIME   Timed#waits <>\n"
            "                Timed#outer <>\n\n",
        ),
    ],
)
def test_form(words: list[str], expected: str, target: Target, trace: Trace) -> None:
    assert shown(trace("calls", target.pid, *words), target, "slow") == expected


def test_json(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--json")
    target.step("last")
    event, end = calls_of(tracer.finish()[0])
    assert event.pop("time_ns") > 1_700_000_000 * 10**9
    assert event.pop("duration_ns") >= 0
    assert event.pop("line") > 1
    assert event.pop("stack") > 0
    assert event == {
        "schema": "rbtrace-py/calls",
        "version": 1,
        "event": "call",
        "pid": target.pid,
        "tid": target.pid,
        "fiber": 1,
        "thread": None,
        "depth": 0,
        "cpu_ns": None,
        "method": "Tiny#last",
        "is_c": False,
        "path": str(TARGETS / "methods/calls.rb"),
        "values": None,
    }
    assert (end["count"], end["lost"], end["stays"]) == (1, 0, [])


def test_files(start: Start, trace: Trace, tmp_path: Path) -> None:
    one, two = start("methods/calls.rb"), start("methods/calls.rb")
    path = tmp_path / "out"
    pids = f"{one.pid},{two.pid}"
    for words in ([], ["-a"]):
        tracer = trace("calls", pids, "-o", path, *words)
        one.step("last")
        two.step("fibers")
        out, err, code = tracer.finish()
        assert (out, code) == ("", 0), err
    first = (tmp_path / f"out.{one.pid}").read_text()
    assert masked(first) == "Tiny#last <>\n" * 2
    second = (tmp_path / f"out.{two.pid}").read_text()
    assert masked(second).count("Plain#leaf <>\n") == 4


def test_several_on_one_output(start: Start, trace: Trace) -> None:
    one, two = start("methods/calls.rb"), start("methods/calls.rb")
    tracer = trace("calls", f"{one.pid},{two.pid}")
    one.step("last")
    two.step("last")
    out, _, _ = tracer.finish()
    lines = sorted(line.split() for line in masked(out).splitlines())
    assert lines == sorted(
        [f"{pid}/{pid}", "Tiny#last", "<>"] for pid in (one.pid, two.pid)
    )


def test_losses_are_marked_where_they_occurred(target: Target, trace: Trace) -> None:
    """The target makes 400,000 events while no tracer reads."""
    tracer = trace("calls", target.pid, "--no-duration", "--buffer", 1024)
    tracer.process.send_signal(signal.SIGSTOP)
    target.step("burst")
    tracer.process.send_signal(signal.SIGCONT)
    # Three records describe the stack, and the last free record is too little for a
    # call.
    kept = 1024 - 3 - 1
    assert tracer.process.stdout
    lines = [tracer.process.stdout.readline() for _ in range(kept // 2)]
    assert set(lines) == {"Tiny#call\n"}
    target.step("last")
    out, err, code = tracer.finish()
    lost = 400_000 - kept
    assert out == f"*** {lost:,} events lost\nTiny#last\n"
    assert f"{lost:,} events were lost" in err
    assert "to lose fewer: select methods (-m)" in err
    assert code == 5


def test_a_terminal_gets_what_can_be_read(target: Target) -> None:
    """Most of 200,000 calls are left out. A pipe gets all calls, as the other tests
    show."""
    seen = Terminal("calls", target.pid, "-m", "Tiny#", "--buffer", 1 << 20)
    seen.read_until("waiting for calls")
    target.step("burst")
    target.step("last")
    seen.type("\x03")
    said, code = seen.finish()
    seen.close()
    assert code == 0, said[-1000:]
    shown = len(re.findall(r"Tiny#call <", said))
    assert 1000 <= shown < 20_000
    (left_out,) = re.findall(r"([\d,]+) lines left out: calls came faster", said)
    assert int(left_out.replace(",", "")) + shown in (200_000, 200_001)
    *_, note = said.partition(f"rbtrace-py: {left_out} lines left out")
    note, _, _ = note.partition("200,001 calls")
    assert "-o FILE or --record FILE has" in " ".join(note.split())
    assert all(len(line) < 80 for line in note.splitlines())
    assert re.search(r"\*\*\* [\d,]+ lines left out", said)
    assert "200,001 calls" in said
    assert "no losses" in said


@pytest.mark.parametrize("words", [["--count", 3], ["--duration", "1ms"]])
def test_it_ends_by_itself(words: list[object], target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, *words)
    target.tell("trees")
    out, err, code = tracer.result()
    assert code == 0, err
    if words[0] == "--count":
        assert masked(out).count("<>") == 3
    assert target.step("armed") in ("done", "done no")


def test_a_target_that_ends(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "-m", "Tiny#")
    target.step("last")
    target.tell("exit")
    out, err, code = tracer.result()
    assert (masked(out), code) == ("Tiny#last <>\n", 0)
    assert "1 call\n" in err


def first_line(tracer: Tracer) -> str:
    """Return the first printed line. Afterwards, the method's name is known."""
    assert tracer.process.stdout
    return masked(tracer.process.stdout.readline())


def test_a_target_that_is_killed(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--count", 100)
    target.step("last")
    assert first_line(tracer) == "Tiny#last <>\n"
    target.step("last")
    target.process.kill()
    out, _, code = tracer.result()
    assert (masked(out), code) == ("Tiny#last <>\n", 0)


def test_a_target_that_becomes_another_program(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid)
    target.step("last")
    assert first_line(tracer) == "Tiny#last <>\n"
    target.step("last")
    target.tell("exec")
    out, err, code = tracer.result()
    assert (masked(out), code) == ("Tiny#last <>\n", 1)
    assert "hung up" in err


def test_a_tracer_that_is_killed(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid)
    assert target.step("armed") == "done yes"
    tracer.process.kill()
    while target.step("armed") != "done no":
        pass
    assert shown(trace("calls", target.pid), target, "last") == "Tiny#last <>\n"


def test_one_tracer_at_a_time(target: Target, trace: Trace) -> None:
    first = trace("calls", target.pid)
    _, err, code = run("calls", target.pid)
    assert (f"armed by process {first.process.pid}" in err, code) == (True, 1)
    assert shown(first, target, "last") == "Tiny#last <>\n"


def test_an_agent_that_comes_later(start: Start, trace: Trace) -> None:
    target = start("methods/calls.rb", "late")
    _, err, code = run("calls", target.pid)
    assert ("RUBYOPT=-rtracepoint/agent" in " ".join(err.split()), code) == (True, 4)
    tracer = trace("calls", target.pid, "--wait", "-m", "Tiny#", waits=False)
    target.step("load")
    out, _, code = tracer.finish()
    assert (masked(out), code) == ("Tiny#last <>\n", 0)


@pytest.mark.parametrize("words", [["calls", "--wait"], ["stacks", "--calls"]])
def test_it_waits_for_no_longer_than_it_traces(words: list[str], start: Start) -> None:
    target = start("methods/calls.rb", "late")
    is_ours = words[0] == "stacks"
    whom = (
        ["--", "ruby", "--disable=rubyopt", "-e", "sleep"] if is_ours else [target.pid]
    )
    _, err, code = run(*words, "-d", "300ms", *whom)
    assert code == 4
    assert err.startswith("rbtrace-py: no agent in process ")
    assert "RUBYOPT=-rtracepoint/agent" in err


def test_an_agent_that_is_put_there(start: Start, trace: Trace) -> None:
    target = start("methods/calls.rb", "late")
    tracer = trace("calls", target.pid, "--attach", "-m", "Tiny#", "Timed#")
    target.step("last")
    out, _, code = tracer.finish()
    assert (masked(out), code) == ("Tiny#last <>\n", 0)


def test_a_command() -> None:
    code = "sleep 0.001 until Tracepoint::Agent.armed_by; def called; end; called"
    words = ["ruby", f"-I{LIB}", "-rtracepoint/agent", "-e", code]
    out, err, status = run("calls", "-m", "called", "--", *words)
    assert (masked(out), status) == ("Object#called <>\n", 0), err


def test_children_join(target: Target, trace: Trace) -> None:
    tracer = trace("calls", target.pid, "--subprocesses", "-m", "Tiny#", "--json")
    _, child, _ = target.step("fork").split()
    events = calls_of(tracer.finish()[0])
    assert [(e["pid"], e["method"]) for e in events[:-1]] == [(int(child), "Tiny#last")]
    assert events[-1]["counters"]["late_processes"] == 1


@pytest.mark.parametrize("command", ["calls", "stacks"])
def test_children_without_an_agent_are_counted(
    command: str, target: Target, trace: Trace, tmp_path: Path
) -> None:
    """Children that existed before are also reported at once."""
    words = ["--calls", "-o", str(tmp_path / "out")] if command == "stacks" else []
    _, child = target.step("child").split()
    tracer = trace(command, target.pid, *words, "--subprocesses", "-m", "Tiny#")
    target.step("last")
    _, err, code = tracer.finish()
    assert code == 0, err
    assert "1 process has no agent and was not traced" in err
    assert f"skipping process {child}: " in err


def test_children_without_an_agent_that_come_later(target: Target) -> None:
    targets = Targets.from_pids([target.pid], follow=True)
    with closing(targets), closing(Calls(targets, CallsOptions())) as session:
        session.start()
        _, child = target.step("child").split()
        deadline = time.monotonic() + TIMEOUT
        while not session.unseen(1)["without_agent"]:
            assert time.monotonic() < deadline
            list(session.events(0.05))
            session.refresh()
        list(session.drain())
        assert session.unseen(1) == {"without_agent": 1, "late_processes": 0}
        assert session.notes[-1].startswith(f"skipping process {child}: ")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("Tiny#lost", " (did you mean Tiny#last?)"),
        ("Tinny#last", " (did you mean Tiny#last?)"),
        ("Plain.tover", " (did you mean Plain.tower?)"),
        ("Tiny.last", " (did you mean Tiny#last?)"),
        ("Plain#tower", " (did you mean Plain.tower?)"),
        ("Nowhere::Tiny#last", ""),
        ("Tiny#qqqq", ""),
        ("no_such_method", ""),
    ],
)
def test_a_method_that_is_written_wrong(word: str, meant: str, target: Target) -> None:
    for command in (["calls"], ["latency", "method"]):
        name, *more = command
        _, err, code = run(name, target.pid, *more, "-m", word, "-d", "100ms")
        said = " ".join(err.split())
        assert code == 0
        assert f"no method matches {word} yet{meant}; new ones are looked for" in said
        assert "--c-calls" not in said


def test_a_method_that_is_never_called(target: Target) -> None:
    words = ("calls", target.pid, "-m", "Tiny#none", "-d", "100ms")
    _, err, code = run(*words)
    assert ("no selected method was called\n" in err, code) == (True, 0)
    _, err, code = run(*words, "--slow", "10ms")
    assert "no selected method was called for that long\n" in err
    _, err, code = run("calls", target.pid, "-m", "String#center", "-d", "100ms")
    assert "String#center: the matching methods have no Ruby code" in err
    assert "--c-calls shows them" in " ".join(err.split())
    assert "no selected method was called; add --c-calls" in err
    out, err, code = run("trace", target.pid, "method")
    assert "Show every call of a method with `rbtrace-py calls PID`" in err
    assert (out, code) == ("", 2)


def test_children_that_are_not_followed(target: Target, trace: Trace) -> None:
    """The calls may be in the children."""
    target.step("child")
    tracer = trace("calls", target.pid, "-m", "Tiny#none")
    _, err, _ = tracer.finish()
    assert "the target has 1 child process, which was not traced" in err


def blocked_in_write(pid: int) -> None:
    """Wait until it waits for its reader and has handled its signals."""

    def is_so() -> bool:
        status = parse_status(Path(f"/proc/{pid}/status").read_bytes())
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        call = Path(f"/proc/{pid}/syscall").read_text()
        return not pending and status["State"][0] == "S" and call.startswith("1 0x")

    assert comes_true(is_so)


def test_a_second_ctrl_c_drops_what_is_not_written(
    root: None, target: Target, trace: Trace
) -> None:
    """No process reads its output, so it cannot end by itself."""
    tracer = trace("calls", target.pid, "-m", "Tiny#", "--buffer", 1 << 19)
    target.step("burst")
    for _ in range(2):
        blocked_in_write(tracer.process.pid)
        tracer.process.send_signal(signal.SIGINT)
    out, err, code = tracer.result()
    assert code == 5, err
    report = err[re.search(r"^[\d,]+ calls$", err, re.MULTILINE).start() :]
    numbers = [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", report)]
    shown, lost = numbers[:2]
    # One call may be written but not yet counted when the signal arrives.
    assert out.count("Tiny#call <") - shown in (0, 1)
    assert 0 < lost <= 400_006 - 2 * shown
    assert "events were lost" in err


@pytest.mark.parametrize("told", [0, 10])
def test_dropped_events_count_as_lost(told: int, target: Target) -> None:
    options = CallsOptions(select=[Selector(owner="Tiny")], ring_records=1 << 19)
    targets = Targets.from_pids([target.pid])
    with closing(targets), closing(Calls(targets, options)) as session:
        session.start()
        target.step("burst")
        waiting = session.waiting()
        # Three records name the thread, and each thread of the agent adds three.
        assert waiting in (400_003, 400_006, 400_009)
        if told:
            with closing(session.drain()) as finishing:
                for _ in range(told):
                    next(finishing)
        session.drop(is_lost=True)
        (end,) = session.ends()
        heard = waiting - end.counters["lost"]
        assert heard in ((told + 3, told + 6, told + 9) if told else (0,))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-m", "a b"], "does not select a method"),
        (["-m", "String#gsub()"], "expression is missing"),
        (["-c", "nothing"], "sidekiq"),
        (["last"], "-m last"),
        (["--slow", "5", "--slowcpu", "5"], "cannot be combined"),
        (["--slowcpu", "5", "--record", "x.rbrec"], "Use --json -o FILE"),
        (["--slow", "0"], "must be greater than 0"),
        (["-a"], "--append"),
    ],
)
def test_words_that_make_no_sense(words: list[str], text: str, target: Target) -> None:
    out, err, code = run("calls", target.pid, *words)
    assert (out, code) == ("", 2)
    assert text in " ".join(err.split())


def test_a_terminal_is_asked(target: Target) -> None:
    """With no, nothing changes. With yes, the methods are armed."""
    words = ["calls", str(target.pid), "--c-calls", "-m", "Tiny#", "-d", "1ms"]
    for answer, code in (("n\n", 1), ("y\n", 0)):
        master, slave = pty.openpty()
        tracer = subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            stdin=slave,
            stderr=slave,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
        )
        os.close(slave)
        os.write(master, answer.encode())
        assert tracer.wait(TIMEOUT) == code
        assert b"anyway?" in os.read(master, 4096)
        os.close(master)
