"""The data sent about a process whose calls are recorded, and how often."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_memory import make_data, memory_of

from rbtrace_py.agent.arming import Armed
from rbtrace_py.agent.shared import ClockPair, TicksOf
from rbtrace_py.model.calls import UNKNOWN_METHOD, TickScale
from rbtrace_py.session.methods import recorded_calls
from rbtrace_py.session.methods.recorded_calls import RecordedProcess

CLOCK_AT = 36


@pytest.mark.parametrize("clock", [TicksOf.MONOTONIC, TicksOf.TSC])
def test_losses_are_told_while_it_runs(
    clock: TicksOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a kill does not take them along, whichever clock the hook has."""
    data = make_data()
    struct.pack_into("<I", data, CLOCK_AT, clock)
    known = SimpleNamespace(
        shared=memory_of(data),
        scale=TickScale(0, 0, 1, 1),
        wall_offset=0,
        select=(),
        shares_natives=False,
        ended=None,
        names=[UNKNOWN_METHOD] * 3,
        look_at_clock=lambda: ClockPair(5, 6),
        keep_learning=lambda: None,
    )
    known.counters = known.shared.counters
    process = RecordedProcess(7, cast(Armed, cast(Any, known)))
    (named,) = process.step()
    assert (len(named.methods), named.lost) == (3, 0)
    assert list(process.step()) == []
    monkeypatch.setattr(recorded_calls, "_LOOK_SECONDS", 0.0)
    (told,) = process.step()
    expected = None if clock is TicksOf.MONOTONIC else (5, 6)
    assert (told.methods, told.lost, told.clock) == ([], 18, expected)
