"""The environment variables of a program that rbtrace-py starts."""

from __future__ import annotations

import os

import pytest

from rbtrace_py.agent import starting


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["-I/a", "-rtracepoint/agent"]
    monkeypatch.setattr(starting, "options", lambda: found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "-I/a -rtracepoint/agent"),
        ({"RUBYOPT": "-w"}, "-w -I/a -rtracepoint/agent"),
        ({"RUBYOPT": "-I/b -rtracepoint/agent"}, None),
    ],
)
def test_how_ruby_finds_the_agent(
    before: dict[str, str], after: str | None, options: None
) -> None:
    """The user's own settings for finding the agent are kept."""
    assert starting.environment(1, before).get("RUBYOPT") == after


@pytest.mark.parametrize(("seconds", "told"), [(0.25, 250), (1e9, 3_600_000)])
def test_how_long_it_waits_and_for_whom(
    seconds: float, told: int, options: None
) -> None:
    found = starting.environment(seconds, {})["TRACEPOINT_AGENT_WAIT"]
    assert found == f"{told}:{os.getpid()}"
