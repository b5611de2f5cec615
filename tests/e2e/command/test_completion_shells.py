"""Tab completion in each real shell, in a pid namespace with one Ruby in it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import MAIN, ROOT, TIMEOUT

PROMPT = "what now? "
START = """
mkfifo "$1/fifo"
ruby -e 'File.write(ARGV[0], "#{Process.pid}\\n"); sleep' "$1/fifo" &
read -r pid < "$1/fifo"
echo "ruby is $pid"
shift
exec "$@"
"""
FILES = {
    "bash": f'eval "$(rbtrace-py completion bash)"; PS1="{PROMPT}"',
    "zsh": "autoload -Uz compinit; compinit -u -D\n"
    f'eval "$(rbtrace-py completion zsh)"; PS1="{PROMPT}"',
    "fish": "rbtrace-py completion fish | source\n"
    'complete -C "rbtrace-py dump "\ncomplete -C "rbtrace-py record --out"',
}
COMMANDS = {
    "bash": ["bash", "--noprofile", "--rcfile", "{}/.zshrc", "-i"],
    "zsh": ["zsh", "-d", "-i"],
    "fish": ["fish", "--no-config", "{}/.zshrc"],
}


@pytest.fixture
def begin(tmp_path: Path, root: None, request: pytest.FixtureRequest) -> list[str]:
    """Return the command that starts this shell beside a Ruby."""
    shell = request.getfixturevalue("shell")
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = tmp_path / "bin" / "rbtrace-py"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{MAIN}" "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".zshrc").write_text(FILES[shell] + "\n")
    words = [word.format(tmp_path) for word in COMMANDS[shell]]
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*apart, "sh", "-c", START, "sh", str(tmp_path), *words]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}/tracer",
        "ZDOTDIR": str(tmp_path),
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab(shell: str, begin: list[str], environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        begin, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    try:
        pid = _until(ours, "\n").strip().rpartition(" ")[2]
        assert pid.isdigit()
        _until(ours, PROMPT)
        os.write(ours, b"rbtrace-py rec\t")
        _until(ours, "rbtrace-py record ")
        os.write(ours, b"\t")
        _until(ours, f"{pid} ")
        os.write(ours, b"--out\t")
        _until(ours, "--output ")
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


@pytest.mark.parametrize("shell", ["fish"])
def test_fish(shell: str, begin: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        begin, capture_output=True, text=True, timeout=TIMEOUT, env=environment
    )
    first, *lines = done.stdout.splitlines()
    pid = first.rpartition(" ")[2]
    said = [line.split("\t") for line in lines]
    assert [words[0] for words in said] == [pid, "--output"], done
    assert said[0][1].startswith("ruby ")


def _until(terminal: int, text: str) -> str:
    """Return the output up to ``text``, colors included."""
    found = b""
    while text.encode() not in found:
        found += os.read(terminal, 1)
    return found.decode()
