"""``console``: code after code in a process, from a pipe and at a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import Terminal

import rubies
from conftest import MAIN, ROOT, TIMEOUT, Target, run
from rubies import HERE, NAMES

Start = Callable[..., Target]
Talk = Callable[..., Terminal]


@pytest.fixture
def target(start: Start) -> Target:
    return start("agent.rb")


@pytest.fixture
def talk(target: Target) -> Iterator[Terminal]:
    terminal = Terminal("console", target.pid, env={"NO_COLOR": "1", "TERM": "dumb"})
    terminal.read_until(rf"{target.pid}:1> ")
    yield terminal
    terminal.close()


def piped(pid: int, code: str) -> tuple[str, str, int]:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "console", str(pid)],
        input=code,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    return done.stdout, done.stderr, done.returncode


CODE = """\
x = 1

def twice(n)
  n * 2 # a comment
end
twice(x)
_ + ANSWER
puts "printed"
<<~TEXT
  here
TEXT
y = [1,
 2]
y.
  size
{a: 1,
 b: 2}.size
1 + \\
  2
__LINE__
"""
ANSWER = """\
>> x = 1
=> 1
>> def twice(n)
  n * 2 # a comment
end
=> :twice
>> twice(x)
=> 2
>> _ + ANSWER
=> 44
>> puts "printed"
printed
=> nil
>> <<~TEXT
  here
TEXT
=> "here\\n"
>> y = [1,
 2]
=> [1, 2]
>> y.
  size
=> 2
>> {a: 1,
 b: 2}.size
=> 2
>> 1 + \\
  2
=> 3
>> __LINE__
=> 20
"""


@pytest.mark.parametrize("name", NAMES)
def test_each_ruby(name: str) -> None:
    with rubies.running(name, "agent.rb") as target:
        assert piped(target.pid, CODE) == (ANSWER, "", 0)
        wrong = "1 + )\nraise 'no'\ndef f; end; end\nfoo(1\n2)\n"
        out, err, code = piped(target.pid, wrong)
    # What can never become right is not waited for.
    pieces = ["1 + )", "raise 'no'", "def f; end; end", "foo(1\n2)"]
    assert out == "".join(f">> {piece}\n" for piece in pieces)
    assert re.search(r"\(console\):2:in .* no \(RuntimeError\)", err)
    assert err.count("(SyntaxError)") == 3
    assert code == 1


def test_what_is_not_finished_at_the_end(target: Target) -> None:
    out, err, code = piped(target.pid, "1\ndef f\n")
    assert out == ">> 1\n=> 1\n>> def f\n"
    assert "(SyntaxError)" in err
    assert code == 1


@pytest.mark.parametrize("word", ["exit", "quit", "exit(3)", "abort"])
def test_leaving(word: str, target: Target) -> None:
    assert piped(target.pid, f"1\n{word}\n2\n")[0] == f">> 1\n=> 1\n>> {word}\n"
    assert target.step("on") == "done on"


def test_variables_are_the_conversations_own(target: Target) -> None:
    assert piped(target.pid, "mine = 1\nNAME = 2\n")[2] == 0
    out, err, _ = piped(target.pid, "NAME\nmine\n")
    assert out.endswith("=> 2\n>> mine\n")
    assert "(NameError)" in err


def test_at_a_terminal(target: Target, talk: Terminal) -> None:
    assert f"agent.rb, process {target.pid}, Ruby " in talk.said
    talk.type("def one\r")
    talk.read_until(rf"{target.pid}:2\* ")
    talk.type("1 end\r")
    talk.read_until(rf"=> :one\r\n{target.pid}:3> ")
    talk.type("raise 'no'\r")
    talk.read_until(rf"no \(RuntimeError\)\r\n{target.pid}:4> ")
    # Readline has what was typed before.
    talk.type("\x10\x10\r")
    talk.read_until(r"\(SyntaxError\)(.|\n)*:5> ")
    talk.type("\x04")
    said, code = talk.finish()
    assert code == 0
    assert said.endswith("5> \r\n")


def test_ctrl_c_ends_what_runs(target: Target, talk: Terminal) -> None:
    talk.type("begin; puts 'o' + 'n'; sleep; ensure; ENDED = 1; end\r")
    talk.read_until(r"\non\r\n")
    talk.type("\x03")
    talk.read_until(rf"cancelled\r\n(.|\n)*{target.pid}:2> ")
    talk.type("ENDED\r")
    talk.read_until(rf"=> 1\r\n{target.pid}:3> ")
    assert target.step("on") == "done on"


def test_a_second_ctrl_c_insists(target: Target, talk: Terminal) -> None:
    """A process that is stopped does not hear the first one."""
    talk.type("puts 'o' + 'n'; sleep\r")
    talk.read_until(r"\non\r\n")
    os.kill(target.pid, signal.SIGSTOP)
    while talk.process.poll() is None:
        os.kill(talk.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            talk.process.wait(0.1)
    said, code = talk.finish()
    assert said.endswith("rbtrace-py: interrupted\r\n")
    assert code == 130


def test_ctrl_c_drops_what_was_typed(target: Target, talk: Terminal) -> None:
    talk.type("def lost\r")
    talk.read_until(rf"{target.pid}:2\* ")
    wait_for_input(talk.process.pid)
    talk.type("\x03")
    talk.read_until(rf"{target.pid}:3> |{target.pid}:2> ")
    talk.type("6 * 7\r")
    talk.read_until(r"=> 42\r\n")


def wait_for_input(pid: int) -> None:
    """Python wakes for a signal only once it sleeps there."""
    end = time.monotonic() + TIMEOUT
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_process_ends_meanwhile(target: Target, talk: Terminal) -> None:
    target.close()
    talk.type("1\r")
    said, code = talk.finish()
    assert said.endswith(f"rbtrace-py: process {target.pid} has ended\r\n")
    assert code == 4


def test_hanging_up(target: Target, talk: Terminal) -> None:
    assert talk.hang_up() in (0, 1, 130)
    assert run("eval", target.pid, "1")[2] == 0


def test_without_an_agent() -> None:
    target = Target(*rubies.command(HERE))
    try:
        _, err, code = piped(target.pid, "1\n")
    finally:
        target.close()
    assert err.startswith(f"rbtrace-py: there is no agent in process {target.pid}\n")
    assert code == 4


def test_one_process_only(start: Start) -> None:
    pids = ",".join(str(start("agent.rb").pid) for _ in range(2))
    _, err, code = run("console", pids)
    assert "with one process" in err
    assert code == 2
