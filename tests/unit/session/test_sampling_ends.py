"""Targets that end just as sampling begins."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing

import pytest

from processes import Target
from rbtrace_py.errors import NoSuchTarget
from rbtrace_py.linux.process import Process
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.targets.targets import Targets

Start = Callable[..., Target]


def listed(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> Targets:
    """List processes as alive that end immediately afterwards."""
    all_of_them = list(targets.processes.values())

    def alive() -> list[Process]:
        monkeypatch.undo()
        return all_of_them

    monkeypatch.setattr(targets, "alive", alive)
    return targets


def end(target: Target) -> None:
    os.kill(target.pid, signal.SIGKILL)
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("is_reaped", [True, False])
@pytest.mark.parametrize("follow", [True, False])
def test_one_of_two(
    start: Start,
    root: None,
    monkeypatch: pytest.MonkeyPatch,
    follow: bool,
    is_reaped: bool,
) -> None:
    left, ended = start("stacks/turning.rb", "0"), start("stacks/turning.rb", "0")
    with closing(Targets.from_pids([left.pid, ended.pid], follow)) as targets:
        end(ended)
        if is_reaped:
            ended.process.wait()
        with Sampling(listed(targets, monkeypatch)) as sampling:
            assert [ruby.process.pid for ruby in sampling.rubies] == [left.pid]
            assert sampling.notes == []


def test_the_only_one(
    start: Start, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = start("stacks/turning.rb", "0")
    with closing(Targets.from_pids([ended.pid])) as targets:
        end(ended)
        ended.process.wait()
        sampling = Sampling(listed(targets, monkeypatch))
        with pytest.raises(NoSuchTarget, match=f"{ended.pid} has ended"):
            sampling.__enter__()


def test_one_of_two_targets_exits_before_the_kernel_walks_it(
    start: Start, root: None
) -> None:
    left, ended = start("stacks/turning.rb", "0"), start("stacks/turning.rb", "0")

    class Late(Sampling):
        def _choose_engine(self) -> None:
            end(ended)
            ended.process.wait()
            super()._choose_engine()

    with (
        closing(Targets.from_pids([left.pid, ended.pid], follow=True)) as targets,
        Late(targets, SamplingOptions(engine=EngineChoice.BPF)) as sampling,
    ):
        assert sampling.notes == []
        assert [ruby.process.pid for ruby in sampling.rubies] == [left.pid]
