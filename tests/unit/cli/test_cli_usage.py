"""Invalid words on the command line: the exit code, the error, and the hint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import comes_true

EVENT_COMMANDS = ["count", "latency", "trace", "values"]
PID = str(os.getpid())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nosuch",), "no such command: nosuch"),
        (("--nosuch",), "no such option"),
        (("count",), "missing target: PID, --ps or -- COMMAND"),
        (("probes",), "missing target: PID, --ps or -- COMMAND"),
        (("count", PID), "missing argument: a probe"),
        (("trace", PID), "missing argument: a probe"),
        (("latency", PID), "span or pair of probes"),
        (
            ("values", PID),
            "missing arguments: a probe and the name of one of its arguments",
        ),
        (
            ("values", PID, "order"),
            "missing arguments: a probe and the name of one of its arguments",
        ),
        (("count", PID, "x", "--by"), "requires an argument"),
        (
            ("count", PID, "x", "--by", "a", "--by=b"),
            "--by takes one key, not a and b",
        ),
        (("count", PID, "x", "--max-keys", "0"), "0 is not in the range"),
        (("count", PID, "x", "-n", "0"), "0 is not in the range"),
        (("count", PID, "x", "-n", "many"), "'many' is not a valid integer"),
        (("count", PID, "x", "-d", "soon"), "'soon' is not a time"),
        (("count", PID, "x", "-d", "1. 5"), "'1. 5' is not a time"),
        (("count", PID, "x", "-i", "0"), "a time must be greater than 0"),
        (("latency", PID, "x", "--unit", "fortnight"), "'fortnight' is not one of"),
        (("latency", PID, "x", "--hlog", "/"), "is a directory"),
        (("latency", PID, "-m", "x", "--sort", "self"), "self time needs all methods"),
        (("count", PID, "x", "-o", "/"), "is a directory"),
        (("trace", PID, "x", "--string-size", "1"), "1 is not in the range"),
        (("trace", PID, "x", "--by", "id"), "no such option"),
        (("stakcs", PID), "Did you mean stacks? See rbtrace-py --help"),
        (("stacks", PID, "--json"), "Did you mean '--format json'?"),
        (("top", PID, "--json"), "Did you mean 'rbtrace-py stacks PID --format json'?"),
        (("completion", "tcsh"), "'tcsh' is not one of"),
        (("completion",), "missing argument"),
        (("doctor", f"{PID},1"), "one process at a time"),
        (("count", "--ps", "(", "x"), "in the regular expression '('"),
        (("count", "--ps", "x", "y", "--", "true"), "cannot be combined"),
        (
            ("count", "12", "y", "--ps", "x"),
            "--ps already names the target; unexpected 12",
        ),
        (("probes", "12,13", "--", "true"), "-- COMMAND already names the target"),
        (("count", "x", "--"), "no command after --"),
        (("--",), "no command after --"),
        (("count", "y", "--", "/no/such/program"), "cannot run /no/such/program"),
    ],
)
def test_usage(words: tuple[str, ...], text: str, say: Callable) -> None:
    said = say(*words)
    assert said.code == 2
    assert text in " ".join(said.err.split())
    assert said.out == ""


@pytest.mark.parametrize("command", [*EVENT_COMMANDS, "probes"])
@pytest.mark.parametrize("word", ["abc", "12x", "1.5", "", "12,", ",", "0x10"])
def test_not_a_pid(command: str, word: str, say: Callable) -> None:
    said = say(command, word, "a", "b")
    assert said.code == 2
    assert said.err.splitlines() == [
        f"rbtrace-py: {word!r} is not a pid",
        "  Give PID, PID,PID…, --ps REGEX, or -- COMMAND…",
    ]


@pytest.mark.parametrize("command", [*EVENT_COMMANDS, "probes"])
@pytest.mark.parametrize("pid", ["0", "2147483647", "2147483648", "9" * 30])
def test_no_such_process(command: str, pid: str, say: Callable) -> None:
    said = say(command, pid, "a", "b")
    assert said.code == 4
    assert said.err.startswith(f"rbtrace-py: there is no process {int(pid)}")


def test_a_pid_that_has_ended(say: Callable) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    said = say("probes", str(ended.pid))
    assert said.code == 4
    assert said.err.splitlines()[0] == f"rbtrace-py: there is no process {ended.pid}"


def test_a_zombie_is_named_for_what_it_is(say: Callable) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    said = say("probes", str(process.pid))
    process.wait()
    assert said.code == 4
    assert "has exited" in said.err


def test_one_bad_pid_of_several(say: Callable) -> None:
    assert say("probes", f"{PID},2147483647").code == 4
    assert say("probes", f"{PID},x").code == 2


def test_nothing_matches_ps(say: Callable) -> None:
    said = say("probes", "--ps", "no-process-is-called-like-this-[0-9]{9}")
    assert said.code == 4
    assert said.err.startswith("rbtrace-py: no process matches")


def test_a_word_that_no_probe_has(say: Callable) -> None:
    said = say("probes", PID, "there_is_no_probe_of_this_name")
    assert said.code == 4
    assert said.err.splitlines()[0] == (
        "rbtrace-py: no probe matches there_is_no_probe_of_this_name"
    )


def test_a_file_that_cannot_be_written(say: Callable) -> None:
    said = say("probes", PID, "-o", "/proc/nowhere/file")
    assert said.code == 1
    assert said.err.startswith("rbtrace-py: cannot write /proc/nowhere/file: ")


@pytest.mark.parametrize("command", ["stacks", "top", "probes"])
def test_a_target_is_named_once(command: str, say: Callable) -> None:
    said = say(command, "--ps", "ruby", str(PID))
    assert said.code == 2
    assert said.err.splitlines() == [
        f"rbtrace-py: --ps already names the target; unexpected {PID}",
        "  Name the target once",
    ]


def test_code_may_be_a_number(say: Callable) -> None:
    said = say("eval", "--ps", "no-process-is-called-like-this-[0-9]{9}", "17")
    assert said.code == 4
    assert said.err.startswith("rbtrace-py: no process matches")
    said = say("eval", "--ps", "^sleep 97", "17", "--", "true")
    assert (said.code, "cannot be combined" in said.err) == (2, True)


def test_several_processes_match_ps_without_a_terminal(say: Callable) -> None:
    words = ["sleep", "97.25"]
    started = [subprocess.Popen(words) for _ in range(2)]
    # The kernel shows an exec's words a moment after it.
    shown = [Path(f"/proc/{process.pid}/cmdline") for process in started]
    assert comes_true(lambda: all(path.read_bytes() for path in shown))
    said = say("probes", "--ps", r"^sleep 97[.]25$")
    for process in started:
        process.kill()
        process.wait()
    assert said.code == 2
    assert said.err.splitlines() == [
        "rbtrace-py: 2 processes match '^sleep 97[.]25$'",
        *(f"  {pid:>8}  sleep 97.25" for pid in sorted(p.pid for p in started)),
        "  Give PIDs (PID,PID), or a more specific REGEX",
    ]


def test_ctrl_c_once_all_is_said_changes_nothing() -> None:
    code = (
        "import atexit, os, signal\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "from rbtrace_py.cli.main import main\n"
        "main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("rbtrace-py")
    assert (done.stderr, done.returncode) == ("", 0)
