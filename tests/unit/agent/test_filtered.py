"""The system calls that a filter must allow, compared with those that are made."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from injecting import injected
from traced_calls import traced_calls

import rubies
from filtering import EPERM, KILL, forbidding
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.filtered import (
    NEEDED,
    OPTIONAL,
    calls_of,
    denied_call,
    fatal_call,
)
from rbtrace_py.agent.protocol import Channel, Map
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.seccomp import Call, parse_filter
from rbtrace_py.session.inside import commands
from rbtrace_py.session.inside.attach import attach, detach
from rbtrace_py.session.inside.commands import evaluate
from rubies import EACH
from ruby_builds import EACH as EACH_BUILD

CODE = "$stdout.puts 1; $stderr.puts 2; 6 * 7"


def is_call(call: Call, number: int, *arguments: int) -> bool:
    pairs = zip(call.arguments, arguments, strict=False)
    return call.number == number and all(one in (None, two) for one, two in pairs)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("ruby", EACH)
def test_no_call_is_missing(ruby: str) -> None:
    with (
        injected("gets", ruby=ruby) as target,
        Process(target.pid) as process,
        traced_calls(target.pid) as calls,
    ):
        attach(process, lambda line: None)
        evaluate(process, CODE, lambda data: None, lambda data: None, seconds=60)
        with Agent(process) as agent:
            agent.call("arm", {"mode": "ring"}, 60)
    numbers = {number for number, *_ in calls}
    assert numbers >= {49, 88, 318, 319}  # bind, symlink, getrandom, memfd_create
    known = (*NEEDED, *OPTIONAL)
    missing = [
        seen for seen in calls if not any(is_call(call, *seen) for call in known)
    ]
    assert sorted({number for number, *_ in missing}) == []


def use(process: Process, command: str, arguments: Map) -> None:
    with Agent(process) as agent:
        agent.call(command, arguments, 60, dict.fromkeys(Channel, drop))


def drop(data: bytes) -> None:
    pass


def arm(process: Process) -> None:
    with Agent(process) as agent:
        agent.call("arm", {"mode": "ring"}, 60)
        agent.call("names", {}, 60)
        agent.call("status", {}, 60)
        agent.call("disarm", {}, 60)


def fork(process: Process) -> None:
    os.kill(commands.fork(process), signal.SIGKILL)
    commands.backtraces(process)


USES: dict[str, Callable[[Process], None]] = {
    "arm": arm,
    "backtraces": lambda process: use(process, "backtraces", {}),
    "memory": lambda process: use(process, "memory", {}),
    "eval": lambda process: use(process, "eval", {"code": CODE}),
    "heapdump": lambda process: use(process, "heapdump", {"gc": True}),
    "fork": fork,
    "stop": detach,
}
"""By command of the agent, a function that exercises it; ``stop`` ends the agent."""
SHOWN = {"arm": 319, "eval": 293, "heapdump": 61, "fork": 56, "stop": 87}
"""A call of a command, so that the test notices if the trace misses calls."""


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("ruby", EACH_BUILD)
def test_no_call_of_a_command_is_missing(ruby: str) -> None:
    jit = Call("mprotect", 10, (None, None, 5))  # it compiles what runs, the agent too
    missing = {}
    with (
        rubies.running(ruby, "inside/agent.rb") as target,
        Process(target.pid) as process,
    ):
        for command, work in USES.items():
            with traced_calls(target.pid) as calls:
                work(process)
            if command in SHOWN:
                assert SHOWN[command] in {number for number, *_ in calls}
            known = (*calls_of(command), jit)
            missing[command] = {
                seen[0]
                for seen in calls
                if not any(is_call(call, *seen) for call in known)
            }
    assert missing == {command: set() for command in USES}


@pytest.mark.parametrize(
    ("number", "answer", "denied"),
    [
        (318, KILL, "getrandom"),
        (318, EPERM, "getrandom"),
        (42, KILL, "connect"),
        (20, KILL, "writev"),
        (293, KILL, "pipe2"),
        (302, KILL, "prlimit64"),
        (302, EPERM, None),
        (59, KILL, None),
    ],
)
def test_what_is_denied(number: int, answer: int, denied: str | None) -> None:
    assert denied_call([parse_filter(forbidding([number], answer))]) == denied


@pytest.mark.parametrize(
    ("command", "number", "answer", "fatal"),
    [
        ("heapdump", 61, KILL, "wait4"),
        ("heapdump", 61, EPERM, None),
        ("fork", 56, KILL, "clone"),
        ("eval", 61, KILL, None),
        ("arm", 319, KILL, "memfd_create"),
        ("memory", 319, KILL, None),
        ("memory", 50, KILL, None),  # listen, of loading
        ("memory", 234, KILL, "tgkill"),
    ],
)
def test_fatal_system_calls_of_a_command(
    command: str, number: int, answer: int, fatal: str | None
) -> None:
    assert fatal_call([parse_filter(forbidding([number], answer))], command) == fatal
