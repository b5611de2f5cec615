"""Completion: the scripts, and their requests to the command."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from rbtrace_py.cli.main import COMMANDS

Complete = Callable[[str, str, int], list[str]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for(shell: str, say: Callable) -> None:
    said = say("completion", shell)
    assert said.code == 0
    assert f"_RBTRACE_PY_COMPLETE={shell}_complete" in said.out
    assert "rbtrace-py" in said.out


@pytest.mark.parametrize(
    ("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")]
)
def test_the_shell_accepts_its_script(shell: str, check: str, say: Callable) -> None:
    program = shutil.which(shell)
    if not program:
        pytest.skip(f"no {shell} here")
    script = say("completion", shell).out
    done = subprocess.run(
        [program, check], input=script, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_commands(complete: Complete) -> None:
    assert complete("bash", "rbtrace-py ", 1) == [f"plain,{name}" for name in COMMANDS]
    assert complete("bash", "rbtrace-py lat", 1) == ["plain,latency"]
    assert "plain,--help" in complete("bash", "rbtrace-py latncy --", 2)


def test_bash_completes_options_and_their_values(complete: Complete) -> None:
    found = complete("bash", "rbtrace-py latency --", 2)
    assert {"plain,--by", "plain,--hlog", "plain,--json"} <= set(found)
    assert complete("bash", "rbtrace-py latency --unit m", 3) == ["plain,ms"]
    assert complete("bash", "rbtrace-py completion ", 2) == [
        "plain,bash",
        "plain,zsh",
        "plain,fish",
    ]


def test_zsh_completes_with_help(complete: Complete) -> None:
    lines = complete("zsh", "rbtrace-py ", 1)
    assert lines[1::3] == list(COMMANDS)
    assert all(lines[2::3])


def test_fish_completes_commands(complete: Complete) -> None:
    found = complete("fish", "rbtrace-py lat", 1)
    assert [line.split("\t")[0] for line in found] == ["plain,latency"]


def test_in_a_shell(say: Callable) -> None:
    """Bash runs the script's function, which runs the command."""
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("no bash here")
    script = say("completion", "bash").out
    lines = [
        script,
        "COMP_WORDS=(rbtrace-py co); COMP_CWORD=1",
        "_rbtrace_py_completion fake_command",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    fake = 'fake_command() { :; }; env() { echo "plain,count"; }\n'
    done = subprocess.run(
        [bash, "--norc"], input=fake + "\n".join(lines), capture_output=True, text=True
    )
    assert done.stdout == "count\n"
