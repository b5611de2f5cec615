"""Hints for too low limits of the shell, and for missing events."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

import pytest

from commands import COMMAND, run, run_program
from processes import LIB, Target
from public_copy import PublicCopy
from rbtrace_py.cli import main
from rbtrace_py.errors import TooManyFiles
from rbtrace_py.linux.binaries import mapped_files, open_mapped
from rbtrace_py.linux.process import Process
from rubies import as_user

RUBY = "$stdout.sync = true; puts :ready; gets"
UNTIL_SEEN = "until ls -l /proc/$PPID/fd 2>/dev/null | grep -q pidfd; do :; done"
"""The target ends once its parent, rbtrace-py, holds it."""


def test_the_targets_file_size(root: None) -> None:
    words = ["ruby", f"-I{LIB}", "-rtracepoint/agent", "-e", RUBY]
    target = Target("sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *words)
    try:
        out, err, code = run("calls", target.pid)
    finally:
        target.close()
    said, _, hint = err.partition("\n")
    assert (out, code) == ("", 1)
    assert said == f"rbtrace-py: process {target.pid}: File too large"
    assert f"prlimit --pid {target.pid} --fsize=unlimited" in " ".join(hint.split())


def test_our_open_files() -> None:
    with Process(os.getpid()) as process:
        file = mapped_files(process)[0]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(TooManyFiles) as caught:
                open_mapped(process, file)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = f"{file.binary.path}: too many open files (ulimit -n is {free})"
    assert str(caught.value) == said
    assert "`ulimit -n 4096`" in caught.value.hint


def test_open_files_that_have_no_name() -> None:
    """For example, those of a pidfd or an epoll."""
    error = main._of_system(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert str(error).startswith("too many open files (ulimit -n is ")


@pytest.mark.parametrize("mode", ["cpu", "offcpu"])
def test_open_files_of_bpf(start: Callable[..., Target], root: None, mode: str) -> None:
    """The memory engine takes fewer. The note or the error names the limit."""
    target = start("stacks/turning.rb")
    words = ["stacks", str(target.pid), "--mode", mode, "-d", "0.1"]
    done = run_program(["prlimit", "--nofile=20", *COMMAND, *words])
    said = " ".join(done.stderr.split())
    assert "too many open files (ulimit -n is 20)" in said
    has_memory = mode == "cpu"
    assert ("stacks are read from memory" in said) is has_memory
    assert "`ulimit -n 4096`" in said
    assert done.returncode == (0 if has_memory else 1)


@pytest.mark.parametrize("words", [("attach", "--no-hook"), ("dump", "--pause")])
def test_our_processes(
    words: tuple[str, ...], public_copy: PublicCopy, root: None
) -> None:
    verb, *options = words
    ruby = Target(*as_user(["ruby", "-e", RUBY]))
    command = public_copy.command(verb, ruby.pid, *options)
    try:
        done = public_copy.run(as_user(["prlimit", "--nproc=0", *command]))
    finally:
        ruby.close()
    assert "Traceback" not in done.stderr
    assert "cannot start another process or thread" in done.stderr
    assert "pids.max" in done.stderr
    assert (done.stdout, done.returncode) == ("", 1)


def test_a_command_without_the_probe(root: None) -> None:
    words = ["sh", "-c", UNTIL_SEEN]
    _, err, code = run("latency", "--wait", "shop:checkout", "--", *words)
    said, _, hint = err.partition("\n")
    assert said == "rbtrace-py: the target exited before its probes appeared"
    assert "`rbtrace-py probes PID` lists them" in " ".join(hint.split())
    assert code == 4
