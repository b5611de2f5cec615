"""Offsets by which the hook finds a method in a frame, for each known Ruby."""

from __future__ import annotations

import pytest

import rubies
from rbtrace_py.agent.arming import Armed, ArmRequest
from rbtrace_py.agent.shared import Condition, HookMode
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.layouts import VERSIONS, layout_from, table_for
from rbtrace_py.session.methods.hook_offsets import hook_offsets, offsets_of
from rubies import EACH

KEYS = {
    "cfp_ep",
    "me_owner",
    "me_def",
    "def_original_id",
    "ment_imemo",
    "svar_imemo",
    "local_flag",
    "ec_thread",
}


@pytest.mark.parametrize("name", EACH)
def test_the_hook_keeps_them(name: str) -> None:
    """It disarms itself if Ruby itself contradicts them."""
    with (
        rubies.running(name, "methods/calls.rb") as running,
        Process(running.pid) as process,
    ):
        offsets = hook_offsets(process)
        assert offsets is not None
        with Armed(process, ArmRequest(HookMode.RING, offsets=offsets)) as armed:
            for step in ("trees", "threads", "fibers"):
                running.target.step(step)
            assert not armed.counters().conditions & Condition.MISMATCH
            streams = armed.shared.streams()
            assert len({s.thread for s in streams}) >= 2
            assert 0 not in {s.thread for s in streams}


@pytest.mark.parametrize("version", VERSIONS)
def test_tables(version: tuple[int, int]) -> None:
    """There are none before 2.4, whose frames differ. Later ones are in the agent's
    form."""
    text = f"{version[0]}.{version[1]}.0"
    found = offsets_of(layout_from(table_for(text), text))
    if version < (2, 4):
        assert found is None
    elif found is not None:
        assert set(found) == KEYS
        assert all(0 <= value <= 1024 for value in found.values())
    assert found is not None or version < (2, 7)
