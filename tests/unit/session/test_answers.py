"""Parsing of an agent's answers, including malformed ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rbtrace_py.agent.client import AgentError
from rbtrace_py.agent.protocol import BrokenAgent, Channel
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import Evaluated, Raised
from rbtrace_py.session.inside import commands, console
from rbtrace_py.session.inside.console import Console, Form, GivenUp

Answer = Callable[..., None]
VALUE = {"value": "1", "class": "Integer", "ns": 5}


class FakeAgent:
    """An agent that gives ``answer`` to every request, and ``data`` before it."""

    answer: ClassVar[Any] = {}
    data = b""
    hello: ClassVar[Any] = {"program": "a.rb", "ruby": "3.4.1"}

    def __init__(self, process: Process) -> None:
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> FakeAgent:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def close(self) -> None:
        return

    def call(
        self, command: str, arguments: Any = None, seconds: float = 0, sinks: Any = None
    ) -> Any:
        self.asked.append({"command": command, **(arguments or {})})
        for channel in (Channel.FILE, Channel.STDOUT):
            if channel in (sinks or {}):
                sinks[channel](self.data)
        if "code" in self.answer:
            raise AgentError(7, self.answer)
        return self.answer


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    for module in (commands, console):
        monkeypatch.setattr(module, "Agent", FakeAgent)

    def give(found: Any, data: bytes = b"") -> None:
        monkeypatch.setattr(FakeAgent, "answer", found)
        monkeypatch.setattr(FakeAgent, "data", data)

    return give


@pytest.fixture
def process() -> Process:
    return Process(os.getpid())


def drop(data: bytes) -> None:
    return


@pytest.mark.parametrize(
    "found",
    [
        {},
        {**VALUE, "value": None},
        {**VALUE, "value": 1},
        {**VALUE, "ns": True},
        {**VALUE, "ns": "5"},
        {"code": "raised", "message": 1, "backtrace": []},
        {"code": "raised", "message": "no", "backtrace": "line"},
        {"code": "raised", "message": "no", "backtrace": [1]},
    ],
)
def test_no_value_and_no_error(found: Any, answer: Answer, process: Process) -> None:
    answer(found)
    with pytest.raises(BrokenAgent):
        commands.evaluate(process, "1", drop, drop)


def test_a_value_without_a_class(answer: Answer, process: Process) -> None:
    answer({**VALUE, "class": None})
    found = commands.evaluate(process, "1", drop, drop)
    assert found == Evaluated("1", "BasicObject", 5)


def test_an_error_without_a_class(answer: Answer, process: Process) -> None:
    answer({"code": "raised", "class": None, "message": "no", "backtrace": ["a:1"]})
    found = commands.evaluate(process, "1", drop, drop)
    assert found == Raised("", "no", ("a:1",))


@pytest.mark.parametrize("found", [{}, {"bytes": 2}, {"bytes": "3"}, {"bytes": True}])
def test_a_dump_that_is_not_whole(found: Any, answer: Answer, process: Process) -> None:
    answer(found, b"{}\n")
    for dump in (commands.heapdump, commands.shapesdump):
        with pytest.raises(BrokenAgent):
            dump(process, drop)


def test_a_whole_dump(answer: Answer, process: Process) -> None:
    answer({"bytes": 3}, b"{}\n")
    taken: list[bytes] = []
    assert commands.heapdump(process, taken.append) == 3
    assert taken == [b"{}\n"]


@pytest.mark.parametrize("found", [{}, {"pid": None}, {"pid": 1}, {"pid": -1}])
def test_a_copy_that_is_none(
    found: Any, answer: Answer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PID that is not of a stopped child of the process is not returned."""
    monkeypatch.setattr(commands, "_FORK_SECONDS", 0.05)
    answer(found)
    with pytest.raises(BrokenAgent):
        commands.fork(process)


@pytest.mark.parametrize("value", [":unfinished", ":expression", ":other"])
def test_the_form_of_code(value: str, answer: Answer, process: Process) -> None:
    answer({**VALUE, "value": value})
    assert Console(process).form("1") is Form(value)


@pytest.mark.parametrize(
    "found",
    [
        {**VALUE, "value": "what?"},
        {"code": "raised", "class": "NameError", "message": "", "backtrace": []},
    ],
)
def test_a_ruby_that_cannot_tell(found: Any, answer: Answer, process: Process) -> None:
    """If the form of the code is unknown, it is just run."""
    answer(found)
    assert Console(process).form("1") is Form.OTHER


@pytest.mark.parametrize("code", ["cancelled", "time"])
def test_code_that_was_ended(code: str, answer: Answer, process: Process) -> None:
    answer({"code": code, "message": "so"})
    talk = Console(process)
    with pytest.raises(GivenUp, match="process 7: so"):
        talk.evaluate("1", Form.OTHER, 1, drop, drop)
    assert not talk.is_busy


def test_the_last_value_is_kept(answer: Answer, process: Process) -> None:
    answer(VALUE)
    talk = Console(process)
    talk.evaluate("a\nb", Form.EXPRESSION, 7, drop, drop)
    talk.evaluate("a\nb", Form.OTHER, 7, drop, drop)
    first, second = talk._agent.asked  # type: ignore[attr-defined]
    assert (first["code"], first["line"]) == ("_ = begin\na\nb\nend", 6)
    assert (second["code"], second["line"]) == ("a\nb", 7)
    assert first["keep"] is second["keep"] is True
