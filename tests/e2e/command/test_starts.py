"""A started program waits until it is traced, even if it is very short."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rubies
from commands import COMMAND, below, run, run_program, without_times
from processes import LIB, MAIN, TARGETS, Target

PROGRAM = str(TARGETS / "stacks/start.rb")
ONLY = ("-m", "first", "-m", "second")
PATIENT = ("--timeout", "60s")
LATE = "did not wait for tracing"
WHOLE = """\
Object#first
  Object#second <>
Object#first <>

Object#second <>

Object#second <>

Object#second <>

Object#first
  Object#second <>
Object#first <>

"""


def ruby(name: str) -> list[str]:
    """Return the words for a Ruby. A Ruby in a chroot gets no RUBYOPT from us."""
    agent = [] if name == rubies.HERE else [f"-I{LIB}", "-rtracepoint/agent"]
    return [*rubies.ruby(name), *agent]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", [rubies.HERE, *map(rubies.chroot, ("2.7", "3.4"))])
def test_every_call_from_the_first_line(name: str) -> None:
    out, err, code = run("calls", *ONLY, *PATIENT, "--", *ruby(name), PROGRAM)
    assert (without_times(out), code) == (WHOLE, 0), err
    assert err.splitlines()[-2:] == ["7 calls", "  no losses"]


def test_an_executed_program_is_traced_from_its_first_line() -> None:
    """A method called just before the end may stay unnamed."""
    words = ["ruby", PROGRAM, "ruby", PROGRAM]
    out, err, code = run("calls", *ONLY, *PATIENT, "--", *words)
    assert code == 0, err
    assert without_times(out).endswith(WHOLE), err
    assert "9 calls" in err.splitlines()
    assert LATE not in err


def test_an_executed_program_that_is_not_ruby() -> None:
    words = ["ruby", PROGRAM, "sh", "-c", "exit 3"]
    _, err, code = run("calls", *ONLY, *PATIENT, "--", *words)
    assert code == 3
    assert "2 calls" in err.splitlines()


def counted(*words: str) -> Any:
    out, err, code = run(*words, "--json", "--", "ruby", PROGRAM)
    assert code == 0, err
    assert LATE not in err
    return json.loads(out)


def test_counts_are_of_the_whole_program() -> None:
    assert counted("count", *ONLY)["count"] == 7
    assert counted("latency", *ONLY)["count"] == 7
    raised = counted("count", "raise", "--via", "agent", "--by", "class")
    found = {group["key"]: group["count"] for group in raised["groups"]}
    assert found["ArgumentError"] == 1


def test_call_trees_are_of_the_whole_program() -> None:
    words = ("stacks", "--calls", "--weight", "calls", *ONLY)
    out, err, code = run(*words, "--", "ruby", PROGRAM)
    assert code == 0, err
    # Garbage collections are up to Ruby.
    lines = (line for line in out.splitlines() if "(garbage collection)" not in line)
    stacks = (line.replace(f" {PROGRAM}", "") for line in lines)
    assert sorted(stacks) == [
        "Object#first 2",
        "Object#first;Object#second 2",
        "Object#second 3",
    ]


def test_exceptions_of_the_whole_program() -> None:
    words = ("trace", "raise", "--via", "agent", "--template", "{message}")
    out, err, code = run(*words, "--", "ruby", PROGRAM)
    assert (out, code) == ('"last"\n', 0), err
    assert LATE not in err


@pytest.mark.parametrize(
    "words",
    [("calls", "-m", "second"), ("count", "-m", "second"),
     ("trace", "raise", "--via", "agent")],
)  # fmt: skip
def test_one_that_does_not_wait(words: tuple[str, ...]) -> None:
    """A note reports this."""
    code = """
        def second = raise
        loop do
          second
        rescue RuntimeError
          sleep 0.001
        end
    """
    start = ["env", "--unset=TRACEPOINT_AGENT_WAIT", "ruby", "-e", code]
    _, err, status = run(*words, "--count", "1", "--", *start)
    assert status == 0, err
    assert LATE in " ".join(err.split())


@pytest.mark.parametrize(
    "words",
    [
        ("count", "watched:event"),
        ("latency", "watched:work", "--slower-than", "1s"),
        ("trace", "watched:event"),
        ("values", "watched:event", "id"),
        ("stacks",),
        ("stacks", "--on", "watched:event", "--yes"),
        ("top",),
        ("record", "-o", "/dev/null"),
        ("calls", "-m", "Work.round"),
        ("latency", "-m", "Work.round"),
        ("trace", "raise", "--via", "agent"),
    ],
    ids=" ".join,
)
def test_a_script_learns_when_tracing_has_begun(
    start: Callable[..., Target], root: None, words: tuple[str, ...]
) -> None:
    """By a line on standard error, or by the descriptor of --ready-fd."""
    verb, *rest = words
    target = start("probes/watched.rb")
    command = [*COMMAND, verb, str(target.pid), *rest, "-d", "0.1"]
    done = run_program(command)
    assert done.stderr.splitlines().count("rbtrace-py: tracing") == 1
    read, write = os.pipe()
    with os.fdopen(read) as ready:
        done = run_program([*command, "--ready-fd", write], [write])
        os.close(write)
        assert ready.read() == "attached\n"
    assert "rbtrace-py: tracing" not in done.stderr


@pytest.mark.parametrize("kind", ["closed", "read-only", "standard output"])
def test_a_descriptor_that_nobody_can_wait_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open() as file:
        read_only = file.fileno()
        number = {"closed": 1000, "read-only": read_only, "standard output": 1}[kind]
        words = ["count", "1", "shop:sold", "--ready-fd", number]
        done = run_program([*COMMAND, *words], [read_only])
    said = {
        "closed": "descriptor 1000 is not open",
        "read-only": "is not open for writing",
        "standard output": "1 is not in the range x>=3",
    }
    assert (said[kind] in " ".join(done.stderr.split()), done.returncode) == (True, 2)


SHORT = """
def cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
def burn(seconds) = (nil while cpu < seconds)
began = cpu
burn(began + 0.1)
puts ((cpu - began) * 1e9).round
"""


HOLDING = (
    "from rbtrace_py.linux.ptrace import held_start; held_start.HELD_SECONDS = 60;"
    f" {MAIN}"
)
"""The command attaches before it must release the program, even on a busy machine."""


def created(*program: str) -> int:
    """Return the number of arrays that a program creates, by Ruby's own probe."""
    words = (sys.executable, "-c", HOLDING, "count", "ruby:array__create", "--json")
    done = run_program((*words, "--", *program))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counters"]["late_probes"] == 0
    assert "appeared during tracing" not in done.stderr
    return int(found["count"])


@pytest.mark.usefixtures("root", "ruby_probes")
def test_a_probe_of_ruby_fires_from_the_beginning() -> None:
    ruby = ("ruby", "--disable-gems", "-e")
    few, many = "10.times { Array.new(3) }", "1010.times { Array.new(3) }"
    assert created(*ruby, many) - created(*ruby, few) == 1000
    shell = ("sh", "-c", f"true; exec ruby --disable-gems -e '{few}'")
    assert created(*shell) == created(*ruby, few)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("engine", ["bpf", "memory"])
def test_stacks_of_a_program_of_a_tenth_of_a_second(engine: str) -> None:
    """They were formerly named only after such a program had ended."""
    words = ("stacks", "--engine", engine, "-r", "500", "--format", "json", "--")
    command = (sys.executable, "-c", HOLDING, *words, "ruby", "-e", SHORT)
    done = run_program(command)
    err = done.stderr
    assert done.returncode == 0, err
    used, _, document = done.stdout.partition("\n")
    found = json.loads(document)
    names = [frame["name"] for frame in found["frames"]]
    burnt = sum(
        stack["weight"]
        for stack in found["stacks"]
        if any(names[number] == "Object#burn" for number in stack["frames"])
    )
    assert burnt >= 0.5 * int(used), err
    counters = found["counters"]
    assert counters["ended"] <= counters["unresolved"] <= 0.5 * counters["samples"]


COLLECTING = """
def burn = ((1..1000).sum while Time.now - BEGAN < 3)
BEGAN = Time.now
burn
"""


@pytest.mark.usefixtures("root")
def test_stacks_of_a_program_that_collects_all_the_time() -> None:
    """At its start it replaces code. Later, it runs the same code all the time."""
    words = ("stacks", "--engine", "bpf", "-d", "1", "--format", "json", "--")
    out, err, code = run(*words, "ruby", "-e", COLLECTING)
    assert code == 0, err
    found = json.loads(out)
    assert below(found, "Object#burn") >= 0.5 * found["weight"], err


@pytest.mark.usefixtures("root", "ruby_probes")
def test_children_that_end_while_they_are_attached_to() -> None:
    ruby = "ruby --disable-gems -e 'GC.start'"
    shell = f"for i in 1 2 3 4 5 6; do {ruby}; echo $i >&2; done; exit 7"
    words = ("count", "ruby:gc__mark__begin", "--subprocesses", "--json", "--")
    _, err, code = run(*words, "sh", "-c", shell)
    assert code in (4, 7), err  # 4: none of them could be attached
    assert [line for line in err.splitlines() if line.isdigit()] == list("123456")
