"""The calls that a filter must let through, held against those that are made."""

from __future__ import annotations

import pytest
from injecting import injected
from traced_calls import traced_calls

from filtering import EPERM, KILL, forbidding
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.filtered import NEEDED, OPTIONAL, denied_call
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.seccomp import Call, parse_filter
from rbtrace_py.session.inside.attach import attach
from rbtrace_py.session.inside.commands import evaluate
from rubies import EACH

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
