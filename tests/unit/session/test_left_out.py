"""Unreadable children: with ``--subprocesses``, the user did not select them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pytest

from processes import Target
from rbtrace_py.cli.common.per_process import each
from rbtrace_py.errors import NoSuchTarget, UnknownRuby
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.session.methods.calls import RING_RECORDS, Calls, CallsOptions
from rbtrace_py.session.probes import session as probe_session
from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.stacks import ruby_process
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.targets.targets import Targets

Start = Callable[..., Target]


@pytest.fixture
def two(start: Start) -> Iterator[tuple[Targets, int, int]]:
    """Targets of two processes, and their PIDs."""
    pids = [start("stacks/turning.rb", "0").pid for _ in range(2)]
    with closing(Targets.from_pids(pids, follow=True)) as targets:
        yield targets, pids[0], pids[1]


def failing(whole: Callable[..., Any], pid: int) -> Callable[..., Any]:
    """Return the same, except that the process ``pid`` cannot be read."""

    def wrapper(process: Process, *arguments: Any) -> Any:
        if process.pid == pid:
            raise UnknownRuby("not to be read")
        return whole(process, *arguments)

    return wrapper


def joins(monkeypatch: pytest.MonkeyPatch, targets: Targets, pid: int) -> None:
    monkeypatch.setattr(targets, "has_joined", lambda process: process.pid == pid)


@pytest.mark.usefixtures("root")
def test_sampling(
    two: tuple[Targets, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets, parent, child = two
    monkeypatch.setattr(ruby_process, "attach", failing(ruby_process.attach, child))
    monkeypatch.setattr(Process, "age", 1000.0)
    with pytest.raises(UnknownRuby), Sampling(targets):
        pass
    joins(monkeypatch, targets, child)
    with Sampling(targets) as sampling:
        assert [ruby.process.pid for ruby in sampling.rubies] == [parent]
        assert sampling.notes == [f"skipping process {child}: not to be read"]


def test_probes(two: tuple[Targets, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    targets, parent, child = two
    monkeypatch.setattr(
        probe_session, "find_probes", failing(probe_session.find_probes, child)
    )
    session = Count(targets, ["ruby:*"])
    with pytest.raises(UnknownRuby):
        session._scan(targets.alive())
    joins(monkeypatch, targets, child)
    for _ in range(2):
        assert list(session._scan(targets.alive())) == [parent]
    assert session.notes == [f"skipping process {child}: not to be read"]


def test_calls(two: tuple[Targets, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    targets, parent, child = two
    header = Mock(ring_records=RING_RECORDS)
    armed = Mock(threads=dict, shared=Mock(header=header))
    session = Calls(targets, CallsOptions())

    def arm(process: Process) -> Mock:
        if process.pid == child:
            raise gone(child)
        return armed

    monkeypatch.setattr(session, "_arm", arm)
    monkeypatch.setattr(session, "trace", lambda pid, armed: Mock(armed=armed))
    with pytest.raises(NoSuchTarget):
        session.start()
    joins(monkeypatch, targets, child)
    with closing(session):
        session.start()
        assert session.pids == [parent]
        assert session.notes == [f"skipping process {child}: process {child} has ended"]


def test_each(
    two: tuple[Targets, int, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets, _, child = two

    def work(process: Process) -> None:
        if process.pid == child:
            raise gone(child)

    assert each("eval", targets, (), work) == NoSuchTarget.exit_code
    joins(monkeypatch, targets, child)
    capsys.readouterr()
    assert each("eval", targets, (), work) == 0
    assert capsys.readouterr().err == (
        f"rbtrace-py: skipping process {child}: process {child} has ended\n"
    )


def test_who_has_joined(start: Start) -> None:
    target = start("probes/preforking.rb")
    with closing(Targets.from_pids([target.pid], follow=True)) as targets:
        joined = {p.pid for p in targets.alive() if targets.has_joined(p)}
        assert joined == set(targets.pids) - {target.pid} != set()
