"""``eval``: code in a process that loaded the agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import rubies
from commands import run
from processes import MAIN, ROOT, TIMEOUT, Target
from public_copy import PublicCopy
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import Raised
from rbtrace_py.session.inside.commands import evaluate
from rubies import HERE, USER
from ruby_builds import EACH

Start = Callable[..., Target]

PYTHON = "print('ready', flush=True); input()"


@pytest.fixture
def target(start: Start) -> Target:
    return start("inside/agent.rb")


def test_a_value(target: Target) -> None:
    out, err, code = run("eval", target.pid, "ANSWER + 1")
    assert (out, err, code) == ("43\n", "", 0)


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str) -> None:
    with rubies.running(name, "inside/agent.rb") as target:
        out, err, code = run("eval", target.pid, "puts RUBY_VERSION[0, 3]; :é")
    assert (err, code) == ("", 0)
    assert out.splitlines() == [rubies.minor(name), ":é"]


@pytest.mark.parametrize("before", ["", "Encoding.default_internal = 'UTF-8'; "])
def test_what_it_prints(before: str, target: Target) -> None:
    """Output comes as bytes, even if Ruby converts written strings, as in Rails."""
    words = '$stdout.print "a\\xff".b; $stderr.puts "b"; warn "c"; $stdout.flush; nil'
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "eval", str(target.pid), before + words],
        capture_output=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    assert done.stdout == b"a\xff\nnil\n"
    assert (done.stderr, done.returncode) == (b"b\nc\n", 0)
    assert target.step("on") == "done on"


def test_an_error(target: Target) -> None:
    code = 'def raises\n  raise ArgumentError, "no \\e[31m"\nend\nraises\n'
    out, err, status = run("eval", target.pid, code)
    assert (out, status) == ("", 1)
    first, *callers = err.splitlines()
    assert first.startswith("(rbtrace):2:in ")
    assert first.endswith(": no \\e[31m (ArgumentError)")
    assert callers[0].startswith("  from (rbtrace):4:in ")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("exit 3", "exit (SystemExit)"),
        ("1 +", "(SyntaxError)"),
        ("throw :nobody", "(UncaughtThrowError)"),
        ("BasicObject.new", "(NoMethodError)"),
    ],
)
def test_code_without_a_value(code: str, text: str, target: Target) -> None:
    _, err, status = run("eval", target.pid, code)
    assert text in err
    assert status == 1
    assert target.step("on") == "done on"


BINARY = r"""
class Odd < StandardError
  def self.to_s = "Odd\xff".b
  def inspect = "odd\xff".b
end
"""


def test_strings_in_rubys_binary_encoding(target: Target) -> None:
    """Messages from the network and non-UTF-8 file names have it."""
    assert run("eval", target.pid, f"{BINARY}; Odd.new") == ("odd\ufffd\n", "", 0)
    raising = r'eval %q(raise Odd, "no\xff".b), binding, "/tmp/f\xff.rb".b, 7'
    out, err, code = run("eval", target.pid, raising)
    assert (out, code) == ("", 1)
    assert err.startswith("/tmp/f\ufffd.rb:7:in ")
    assert "no\ufffd (Odd\ufffd)\n" in err
    sleeping = r'eval %q(Thread.new { sleep }; 1), binding, "/tmp/f\xff.rb".b, 7'
    assert run("eval", target.pid, sleeping) == ("1\n", "", 0)
    out, err, code = run("backtraces", target.pid)
    assert (err, code) == ("", 0)
    assert "/tmp/f\ufffd.rb:7:in" in out


def test_from_a_file(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "code.rb"
    path.write_text("# encoding: utf-8\n[__FILE__, __LINE__]\n")
    out, _, code = run("eval", target.pid, "-f", path)
    assert out.splitlines()[-1] == f'["{path}", 2]'
    assert code == 0
    path.write_bytes(b"\xff")
    _, err, code = run("eval", target.pid, "-f", path)
    assert "is not UTF-8" in " ".join(err.split())
    assert code == 2
    _, err, code = run("eval", target.pid, "-f", tmp_path / "none")
    assert "none" in err
    assert code == 2


@pytest.mark.parametrize("words", [[], ["-f", "-"]])
def test_from_standard_input(words: list[str], target: Target) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "eval", str(target.pid), *words],
        input="1 + 2\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    assert (done.stdout, done.returncode) == ("3\n", 0)


def test_json(target: Target) -> None:
    words = '$stdout.puts 1; $stderr.print "é"; ANSWER'
    out, err, code = run("eval", target.pid, words, "--json")
    document = json.loads(out)
    assert document.pop("time_ns") > 0
    assert document == {
        "schema": "rbtrace-py/eval",
        "version": 1,
        "pid": target.pid,
        "code": words,
        "value": "42",
        "class": "Integer",
        "error": None,
        "stdout": "1\n",
        "stderr": "é",
    }
    assert (err, code) == ("", 0)


def test_json_of_an_error(target: Target) -> None:
    out, err, code = run("eval", target.pid, 'raise "no"', "--json")
    document = json.loads(out)
    assert (document["value"], document["class"]) == (None, None)
    assert document["error"]["class"] == "RuntimeError"
    assert document["error"]["message"] == "no"
    assert document["error"]["backtrace"][0].startswith("(rbtrace):1")
    assert (err, code) == ("", 1)


PRINTS = """object = Object.new
def object.to_s = raise("no")
def print_it(object) = $stdout.puts(object)
print_it(object)"""
ERRORS = [
    ("raise 'no'", r"no", [(1, "<main>")]),
    ("def f = raise('no'); f", r"no", [(1, "f"), (1, "<main>")]),
    ("$stdout.no_such", r"undefined method .no_such' for .*", [(1, "<main>")]),
    ("BasicObject.new", r"undefined method .inspect' for .*", []),
    (PRINTS, r"no", [(2, "to_s"), (3, "print_it"), (4, "<main>")]),
    (
        "Tracepoint::Agent.undoing(-> {}) { raise 'no' }",
        r"no",
        [(1, "block in <main>"), (1, "<main>")],
    ),
]
"""Code, its error message, and its backtrace: lines of the code, and names."""


@pytest.mark.parametrize("way", ["required", "attached"])
def test_nothing_of_the_agent_is_in_an_error(
    way: str, start: Start, request: pytest.FixtureRequest
) -> None:
    target = start("inside/agent.rb" if way == "required" else "inside/unaware.rb")
    if way == "attached":
        request.getfixturevalue("root")
        assert run("attach", target.pid)[2] == 0
    frame = re.compile(r"\(rbtrace\):(\d+):in ['`](?:.*[#.])?(.+)'")
    process = Process(target.pid)
    for code, message, backtrace in ERRORS:
        raised = evaluate(process, code, Mock(), Mock(), seconds=TIMEOUT)
        assert isinstance(raised, Raised)
        assert re.fullmatch(message, raised.message), code
        found = [frame.fullmatch(line) for line in raised.backtrace]
        assert all(found), raised.backtrace
        assert [(int(one[1]), one[2]) for one in found if one] == backtrace


def test_code_and_values_of_any_size(target: Target, tmp_path: Path) -> None:
    size = 4_000_000
    out, _, code = run("eval", target.pid, f'$stdout.print "b" * {size}; "a" * {size}')
    assert out.splitlines() == ["b" * size, f'"{"a" * size}"']
    assert code == 0
    path = tmp_path / "long.rb"
    path.write_text(f"#{'x' * 3_000_000}\n{'1 +' * 300} 1")
    out, _, code = run("eval", target.pid, "-f", path)
    assert out == "301\n"
    path.write_text("#" * (16 << 20))
    _, err, code = run("eval", target.pid, "-f", path)
    assert "too long for the agent" in err
    assert code == 2


def test_a_time_limit(target: Target) -> None:
    words = ("eval", target.pid, "$stdout.puts 1; loop { }", "--timeout", "300ms")
    out, err, code = run(*words)
    assert out.splitlines() == ["1"]
    assert "the time limit of 0.3 s passed" in err
    assert "Set another limit with --timeout" in err
    assert code == 1
    assert target.step("on") == "done on"


def test_ctrl_c_ends_the_code(target: Target) -> None:
    code = "begin; $stdout.puts :on; sleep; ensure; ENDED = 1; end"
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "eval", str(target.pid), code, "--timeout", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    assert process.stdout
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT)
    assert (err, process.returncode) == ("rbtrace-py: interrupted\n", 130)
    waiting = "Thread.pass until defined?(ENDED); ENDED"
    assert run("eval", target.pid, waiting)[0] == "1\n"


def test_json_where_the_time_was_over(target: Target) -> None:
    words = ("$stdout.puts 1; loop { }", "--timeout", "300ms", "--json")
    out, err, code = run("eval", target.pid, *words)
    document = json.loads(out)
    message = f"process {target.pid}: the time limit of 0.3 s passed"
    error = {"class": None, "message": message, "backtrace": []}
    assert (document["error"], document["stdout"]) == (error, "1\n")
    hint = "Set another limit with --timeout"
    assert (err, code) == (f"rbtrace-py: {message}\n  {hint}\n", 1)


def test_a_backtrace_without_end(target: Target) -> None:
    _, err, code = run("eval", target.pid, "def deeper = deeper; deeper")
    lines = err.splitlines()
    assert "(SystemStackError)" in lines[0]
    assert re.fullmatch(r"  … [\d,]+ more …", lines[21])
    assert (len(lines), code) == (42, 1)


def test_a_thread_that_is_killed(target: Target) -> None:
    _, err, code = run("eval", target.pid, "Thread.current.kill")
    assert (err, code) == ("the thread was killed\n", 1)


def test_a_process_that_is_stopped(target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    _, err, code = run("eval", target.pid, "1")
    os.kill(target.pid, signal.SIGCONT)
    assert "Continue it, as it is stopped: kill -CONT" in err
    assert code == 1


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_process_that_ends_meanwhile(target: Target, name: str) -> None:
    _, err, code = run("eval", target.pid, f"Process.kill(:{name}, $$); sleep")
    assert err == f"rbtrace-py: process {target.pid} has ended\n"
    assert code == 4


def test_a_terminal_is_not_steered(target: Target) -> None:
    words = '$stdout.print "a\\e[2Jb\\tc\\n"; Class.new { def inspect = "\\e[2J" }.new'
    main, side = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "eval", str(target.pid), words],
        stdout=side,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tracer"),
            "NO_COLOR": "1",
            "PYTHONUTF8": "1",
        },
    )
    os.close(side)
    written = bytearray()

    def read() -> None:
        try:
            while data := os.read(main, 4096):
                written.extend(data)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(TIMEOUT) == 0
    reader.join(TIMEOUT)
    os.close(main)
    lines = bytes(written).replace(b"\r", b"").splitlines()[1:]
    assert b"\x1b" not in written
    assert lines[0].startswith(b"a\\e[2Jb")
    assert lines[1] == b"=> \\e[2J"


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (rubies.command(HERE), ("no agent in", "RUBYOPT=-rtracepoint/agent")),
        ((sys.executable, "-c", PYTHON), (") does not run Ruby",)),
    ],
    ids=["ruby", "python"],
)
def test_without_an_agent(words: tuple[str, ...], texts: tuple[str, ...]) -> None:
    target = Target(*words)
    try:
        _, err, code = run("eval", target.pid, "1")
    finally:
        target.close()
    assert all(text in err for text in texts), err
    assert code == 4


def test_processes_of_several_users(root: None, public_copy: PublicCopy) -> None:
    """Root can query any process. Another user can only query their own."""
    ruby = ["ruby", str(public_copy.targets / "inside/agent.rb")]
    target = Target(*rubies.as_user(ruby))
    other = Target(*ruby)
    try:
        assert run("eval", target.pid, "Process.uid")[0] == f"{USER}\n"
        done = public_copy.run(
            rubies.as_user(public_copy.command("eval", other.pid, "1"))
        )
    finally:
        target.close()
        other.close()
    assert "belongs to user root" in " ".join(done.stderr.split())
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["1", "2"], "too many arguments"),
        (["1", "-f", "x"], "cannot be combined"),
        (["1", "--timeout", "2h"], "at most 3600 s"),
    ],
)
def test_usage(words: list[str], text: str, target: Target) -> None:
    _, err, code = run("eval", target.pid, *words)
    assert text in err
    assert code == 2
