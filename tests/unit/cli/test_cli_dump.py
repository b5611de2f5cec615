"""``dump`` of several processes, some of which cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from rbtrace_py.cli import dump as command
from rbtrace_py.errors import NotPermitted, RbtraceError, UnknownRuby, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.model.dump import Dump, DumpedThread
from rbtrace_py.model.stacks import RubyThread, Stack, ThreadState


def dumps_but(pid: int, error: RbtraceError) -> Callable[..., Dump]:
    """Return a function that reads every process but one."""

    def dump(process: Process, _: object) -> Dump:
        if process.pid == pid:
            raise error
        thread = RubyThread(process.pid, process.pid, 1, "")
        state = ThreadState.SLEEPING
        threads = (DumpedThread(thread, state, False, "S", Stack(())),)
        return Dump(process.pid, "ruby", "3.1.2", threads)

    return dump


@pytest.mark.parametrize("error", [NotPermitted("not allowed"), UnknownRuby("strange")])
def test_the_others_are_shown(
    error: RbtraceError, say: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        monkeypatch.setattr(command, "dump", dumps_but(os.getpid(), error))
        said = say("dump", f"{os.getpid()},{other.pid}", "--json")
        alone = say("dump", str(os.getpid()))
        other.kill()
    found = [one["pid"] for one in json.loads(said.out)["processes"]]
    assert (found, said.code) == ([other.pid], 0)
    assert said.err == f"rbtrace-py: {error}\n"
    assert (alone.out, alone.err, alone.code) == ("", said.err, error.exit_code)


def test_a_usage_error_ends_the_command_for_all_processes(
    say: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UsageError("'x' is not a Ruby version")
    with subprocess.Popen(["sleep", "60"]) as other:
        monkeypatch.setattr(command, "dump", dumps_but(os.getpid(), error))
        said = say("dump", f"{other.pid},{os.getpid()}")
        other.kill()
    assert (said.out, said.err, said.code) == ("", f"rbtrace-py: {error}\n", 2)
