"""A hook that reads a structure differently from Ruby: the user gets the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

import rubies
from rbtrace_py.agent.arming import HookMismatch
from rbtrace_py.agent.client import AgentError
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods import hook_session
from rbtrace_py.session.methods.call_trees import FoldedCalls
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets
from rubies import HERE, Running

TEXT = "disarmed itself: it does not find the method of a frame where this Ruby has it"


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A target whose hook is given a wrong offset of methods' names."""

    def wrong_offsets(process: Process) -> dict[str, int]:
        found = hook_offsets(process)
        assert found is not None
        return {**found, "def_original_id": found["def_original_id"] - 8}

    monkeypatch.setattr(hook_session, "hook_offsets", wrong_offsets)
    with rubies.running(HERE, "methods/calls.rb") as found:
        yield found


@pytest.mark.parametrize("kind", [Calls, FoldedCalls])
def test_calls(running: Running, kind: type[Calls]) -> None:
    options = CallsOptions(confirm=lambda text: True)
    targets = Targets.from_pids([running.pid])
    with closing(targets), closing(kind(targets, options)) as session:
        session.start()
        running.target.step("trees")
        assert not list(session.drain())
        problem = session.ends()[0].problem
    assert isinstance(problem, HookMismatch)
    assert TEXT in str(problem)
    assert "stacks" in problem.hint
    running.target.step("trees")


def test_tables(running: Running) -> None:
    options = MethodOptions(confirm=lambda text: True)
    targets = Targets.from_pids([running.pid])
    with (
        closing(targets),
        Methods(targets, "latency", ["method"], options) as session,
    ):
        running.target.step("trees")
        with pytest.raises(HookMismatch, match="the method of a frame"):
            session.finish()
    running.target.step("trees")


def test_a_newer_ruby(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with a hint, and armed if the hint is followed."""
    with rubies.running(HERE, "methods/calls.rb", "version=9.9.0") as running:
        targets = Targets.from_pids([running.pid])
        with closing(targets), closing(Calls(targets, CallsOptions())) as session:
            with pytest.raises(AgentError, match=r"9\.9\.0 is newer than 4\.1") as e:
                session.start()
            assert "RBTRACE_UNTESTED_RUBY=1" in e.value.hint
            monkeypatch.setenv("RBTRACE_UNTESTED_RUBY", "1")
            session.start()
