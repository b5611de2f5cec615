"""``rbtrace``: the flags of rbtrace work as they do there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import rubies
from commands import Tracer, run
from processes import LIB, ROOT, TIMEOUT, Target
from rbtrace_py.agent import starting
from rubies import EACH, HERE

Start = Callable[..., Target]
AGENT = ROOT / "tracer" / "rbtrace_py" / "agent"


@pytest.fixture
def target(start: Start) -> Target:
    return start("inside/agent.rb")


@pytest.mark.parametrize("name", EACH)
def test_eval_in_each_ruby(name: str) -> None:
    with rubies.running(name, "inside/agent.rb") as target:
        out, err, code = run("rbtrace", "-p", target.pid, "-e", "ANSWER")
    assert out == ">> ANSWER\n=> 42\n"
    assert err == f"rbtrace-py: rbtrace-py eval {target.pid} ANSWER --echo\n"
    assert code == 0


def test_errors_are_those_of_the_command(target: Target) -> None:
    _, err, code = run("rbtrace", "-p", target.pid, "-e", "raise 'no'")
    assert "no (RuntimeError)" in err
    assert code == 1


def test_the_command_that_includes_c_methods(
    start: Start, trace: Callable[..., Tracer]
) -> None:
    """The printed command runs unchanged."""
    target = start("methods/calls.rb")
    out, err, _ = trace("rbtrace", "-p", target.pid, "-m", "upcase").finish()
    assert out == ""
    command = re.search(r"type:\n.*: rbtrace-py (rbtrace .*)", err)[1]
    tracer = trace(*shlex.split(command), "--yes")
    target.step("strings")
    assert tracer.finish()[0].startswith("String#upcase <0.")


def test_dumps(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "heap.json"
    assert run("rbtrace", "-p", target.pid, "-h", path)[2] == 0
    assert path.read_bytes().startswith(b"{")
    out, _, code = run("rbtrace", "-p", target.pid, "-b")
    assert out.startswith(f"process {target.pid}, 2 threads\n")
    out, _, code = run("rbtrace", "-p", target.pid, "--backtrace", "1")
    assert (out.count("agent.rb:"), code) == (1, 0)
    out, _, code = run("rbtrace", "-p", target.pid, "--memory")
    assert "GC.stat" in out
    assert code == 0


def test_a_heap_dump_by_hand(target: Target, tmp_path: Path) -> None:
    """Users of rbtrace do it this way: in a thread that runs by itself."""
    path = tmp_path / "ruby-heap.dump"
    code = (
        '$dump = Thread.new{GC.start;require "objspace";'
        f'io=File.open("{path}", "w"); ObjectSpace.dump_all(output: io); io.close}}'
    )
    out, _, status = run("rbtrace", "-p", target.pid, "-e", code)
    assert out.startswith(f">> {code}\n=> #<Thread:")
    assert status == 0
    waited = run("eval", target.pid, "$dump.join.status", "--timeout", "1m")
    assert waited[0] == "false\n"
    lines = path.read_text(errors="replace").splitlines()
    assert {"ROOT", "STRING"} < {json.loads(line)["type"] for line in lines}


@pytest.mark.parametrize("before", ["", f"-I{LIB}"])
def test_calls_of_a_program_that_is_started(tmp_path: Path, before: str) -> None:
    """With the gem in Ruby, and without it."""
    path, program = tmp_path / "calls", tmp_path / "program.rb"
    # It waits until it is traced.
    program.write_text(
        "Thread.pass until Tracepoint::Agent.armed_by\n"
        "def shout(n) = n + 1\n"
        "def twice(n) = shout(shout(n))\n"
        "twice(1)\n"
    )
    words = ("-m", "shout", "twice", "-n", "-r", "4", "-o", path)
    env = {"RUBYOPT": before}
    _, err, code = run("rbtrace", *words, "--exec", "ruby", program, env=env)
    assert code == 0, err
    assert path.read_text().split("\n\n")[0].splitlines() == [
        "Object#twice",
        "    Object#shout",
        "    Object#shout",
        "Object#twice",
    ]


@pytest.mark.parametrize("has_gem", [True, False])
def test_whose_agent_a_program_gets(
    has_gem: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package's agent and its hook, unless the gem's agent is there."""
    ours, gem = tmp_path / "agent", tmp_path / "gem" / "tracepoint" / "agent.rb"
    shutil.copytree(AGENT / "first", ours / "first")
    shutil.copytree(AGENT / "source", ours / "source")
    gem.parent.mkdir(parents=True)
    gem.write_text("module Tracepoint; HERE = __FILE__; end")
    monkeypatch.setattr(starting, "_FIRST", ours / "first")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [*starting.options(), *([f"-I{gem.parents[1]}"] if has_gem else [])]
    code = (
        'require "tracepoint/agent"; puts Tracepoint.const_defined?(:HERE) ?'
        " Tracepoint::HERE : [Tracepoint::Agent::FOLDER, Tracepoint::Agent.path &&"
        " Tracepoint::Agent::Native.reason.inspect]"
    )
    done = subprocess.run(
        ["ruby", "-e", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "RUBYOPT": " ".join(words)},
    )
    found = [str(gem)] if has_gem else [str(ours / "source"), "nil"]
    assert (done.stdout.splitlines(), done.stderr) == (found, "")


def test_without_an_agent() -> None:
    target = Target(*rubies.command(HERE))
    try:
        _, err, code = run("rbtrace", "-p", target.pid, "-i")
    finally:
        target.close()
    assert f"no agent in process {target.pid}" in err
    assert code == 4


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",), ("-p", "1", "--help")])
def test_help(words: tuple[str, ...]) -> None:
    out, err, code = run("rbtrace", *words)
    assert out.startswith("Usage: rbtrace-py rbtrace")
    assert (err, code) == ("", 0 if words else 2)
