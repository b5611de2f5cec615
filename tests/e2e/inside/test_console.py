"""``console``: code evaluated line by line in a process, from a pipe and a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import Terminal

import rubies
from commands import run
from processes import MAIN, ROOT, TIMEOUT, Target, await_state, comes_true, task_states
from rbtrace_py.cli.common.stop import Interrupted
from rbtrace_py.cli.console import _signals
from rbtrace_py.linux.process import Process
from rbtrace_py.session.inside import completion
from rbtrace_py.session.inside import console as session
from rbtrace_py.session.inside.console import Console
from rubies import HERE
from ruby_builds import EACH

Start = Callable[..., Target]
Talk = Callable[..., Terminal]


@pytest.fixture
def target(start: Start) -> Target:
    return start("inside/agent.rb")


@pytest.fixture
def talk(target: Target, tmp_path: Path) -> Iterator[Terminal]:
    terminal = begin(target, tmp_path)
    yield terminal
    terminal.close()


def begin(target: Target, state: Path) -> Terminal:
    """Start a session whose history is kept in ``state``."""
    env = {"NO_COLOR": "1", "TERM": "dumb", "INPUTRC": "/dev/null"}
    env["XDG_STATE_HOME"] = str(state)
    terminal = Terminal("console", target.pid, env=env)
    terminal.read_until(rf"{target.pid}:1> ")
    return terminal


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


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str) -> None:
    with rubies.running(name, "inside/agent.rb") as target:
        assert piped(target.pid, CODE) == (ANSWER, "", 0)
        wrong = "1 + )\nraise 'no'\ndef f; end; end\nfoo(1\n2)\n"
        out, err, code = piped(target.pid, wrong)
        with Process(target.pid) as process, Console(process) as console:
            assert console.complete("x = ANSW") == ["ANSWER"]
            assert "encoding" in console.complete('"".enc')
            assert console.complete("Comparable.instance_meth") == [
                *("instance_method", "instance_methods"),
            ]
    # Code that no further line can complete is evaluated at once.
    pieces = ["1 + )", "raise 'no'", "def f; end; end", "foo(1\n2)"]
    assert out == "".join(f">> {piece}\n" for piece in pieces)
    assert re.search(r"\(console\):2:in .* no \(RuntimeError\)", err)
    assert err.count("(SyntaxError)") == 3
    assert code == 1


def test_unfinished_code_at_the_end_of_input(target: Target) -> None:
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
    # Readline offers earlier input.
    talk.type("\x10\x10\r")
    talk.read_until(r"\(SyntaxError\)(.|\n)*:5> ")
    talk.type("\x04")
    said, code = talk.finish()
    assert code == 0
    assert said.endswith("5> \r\n")


def test_the_history_is_available_in_the_next_session(
    target: Target, talk: Terminal, tmp_path: Path
) -> None:
    said = [r":2\*", "=> 42(.|\n)*:3>", r":4\*", "=> 49(.|\n)*:5>"]
    for line, then in zip(["6 *", "  7", " 7 *", "7"], said, strict=True):
        talk.type(f"{line}\r")
        talk.read_until(f"{then} ")
    talk.type("\x04")
    assert talk.finish()[1] == 0
    path = tmp_path / "rbtrace-py" / "console_history"
    assert path.read_text() == "6 *\n  7\n"
    again = begin(target, tmp_path)
    try:
        again.type("\x10\x10\r")
        again.read_until(r":2\* ")
        again.type("\x10\x10\r")
        again.read_until(r"=> 42\r\n")
    finally:
        again.close()


PROGRAM = """
class Odd < BasicObject
  def only_mine = ::CALLED << :only_mine
  def method_missing(*) = ::CALLED << :method_missing
end
module Works
  class Tool
    def hammer = 1
    def methods(*) = CALLED << :methods
    def respond_to_missing?(*) = CALLED << :respond_to_missing?
  end
  autoload :Later, "/nonexistent/later.rb"
  def self.const_missing(*) = CALLED << :const_missing
  def self.constants(*) = CALLED << :constants
end
CALLED = []; tool = Works::Tool.new; odd = Odd.new; nil
"""


def test_completion(target: Target, talk: Terminal) -> None:
    """No method of the program is called, and nothing is loaded."""
    piped(target.pid, PROGRAM)
    talk.type("tool = Works::Tool.new; odd = Odd.new; CALLED.size\r")
    talk.read_until(r"=> 0\r\n.*:2> ")
    lines = ["tool.ham\t + 41", "Works::To\t.name", "Wor\t.name", "CALLED.si\tze"]
    for number, (line, value) in enumerate(
        zip(lines, ["42", '"Works::Tool"', '"Works"', "0"], strict=True), 2
    ):
        talk.type(f"{line}\r")
        talk.read_until(rf"=> {value}\r\n.*:{number + 1}> ")
    # An unknown name stays as it is, with a bell.
    for line in ("odd.xy", "Works::Later.na", "Works::Nope.na", "tool.hammer.si"):
        talk.type(f"{line}\t|\x15")
        talk.read_until(rf"{re.escape(line)}\x07\|")
    talk.type("odd.only\t|\x15CALLED.dup << 1\r")
    talk.read_until(r"odd.only_mine\|(.|\n)*=> \[1\]\r\n")


def test_console_requests_do_not_change_variables(target: Target) -> None:
    """The program's own variables stay as they are, even those named like the
    console's."""
    ours = completion._ASK + session._ASK_FOR_FORM
    names = sorted({*re.findall(r"^ +(\w+) = ", ours, re.M), "error", "known"})
    assert {"names", "found", "message", "value"} <= set(names)
    words = f"%i[{' '.join(names)}]"
    keep = f"{words}.each {{ |it| TOPLEVEL_BINDING.local_variable_set(it, it) }}; nil\n"
    assert piped(target.pid, keep)[2] == 0
    with Process(target.pid) as process, Console(process) as console:
        assert console.complete("Comparable.instance_meth")
        assert console.complete("Comp")
        assert console.form("1 + )") is session.Form.OTHER
        assert console.form("1 +") is session.Form.UNFINISHED
    read = f"{words}.map {{ |it| TOPLEVEL_BINDING.local_variable_get(it) }}"
    assert "=> true\n" in piped(target.pid, f"{read} == {words}\n")[0]


def test_completion_does_not_wait_for_a_program_that_is_busy(
    target: Target, talk: Terminal
) -> None:
    talk.type("module Kernel; def catch(*) = sleep; end; SLOW = 1\r")
    talk.read_until(r"=> 1\r\n.*:2> ")
    talk.type("SLO\t + 41\r")
    talk.read_until(r"SLO\x07 \+ 41\r\n(.|\n)*NameError")
    talk.type("1 + 1\r")
    talk.read_until(r"=> 2\r\n")


def test_ctrl_c_ends_what_runs(target: Target, talk: Terminal) -> None:
    talk.type("begin; puts 'o' + 'n'; sleep; ensure; ENDED = 1; end\r")
    talk.read_until(r"\non\r\n")
    talk.type("\x03")
    talk.read_until(rf"cancelled\r\n(.|\n)*{target.pid}:2> ")
    talk.type("ENDED\r")
    talk.read_until(rf"=> 1\r\n{target.pid}:3> ")
    assert target.step("on") == "done on"


def test_a_second_ctrl_c_insists(target: Target, talk: Terminal) -> None:
    """A stopped process does not receive the first one."""
    talk.type("puts 'o' + 'n'; sleep\r")
    talk.read_until(r"\non\r\n")
    stop(target.pid)
    while talk.process.poll() is None:
        os.kill(talk.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            talk.process.wait(0.1)
    said, code = talk.finish()
    assert said.endswith("rbtrace-py: interrupted\r\n")
    assert code == 130


def stop(pid: int) -> None:
    """Stop all threads, even those that had not received the signal yet."""
    os.kill(pid, signal.SIGSTOP)
    assert comes_true(lambda: task_states(pid) == {"T"})


def test_ctrl_c_stops_nobody_who_leaves(target: Target) -> None:
    """A third Ctrl-C arrives during the exit, when no code runs any more."""
    with Process(target.pid) as process, Console(process) as console, _signals(console):
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(Interrupted):
                signal.raise_signal(number)


def test_ctrl_c_drops_what_was_typed(target: Target, talk: Terminal) -> None:
    talk.type("def lost\r")
    talk.read_until(rf"{target.pid}:2\* ")
    # Python handles a signal only once it sleeps there.
    await_state(talk.process.pid, "S")
    talk.type("\x03")
    talk.read_until(rf"{target.pid}:3> |{target.pid}:2> ")
    talk.type("6 * 7\r")
    talk.read_until(r"=> 42\r\n")


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
    assert err.startswith(f"rbtrace-py: no agent in process {target.pid}\n")
    assert code == 4


def test_one_process_only(start: Start) -> None:
    pids = ",".join(str(start("inside/agent.rb").pid) for _ in range(2))
    _, err, code = run("console", pids)
    assert "works on one process" in err
    assert code == 2
