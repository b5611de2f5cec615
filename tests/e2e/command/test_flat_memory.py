"""Long-running commands keep their memory: each live command, for an hour in a soak."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from lasting import own_memory, running

from processes import Target, is_soak

SECONDS, WARM_SECONDS, MOST_MIB = (3600, 300, 8) if is_soak() else (10, 4, 16)
"""The run time of the commands, the time before their memory is measured, and its
maximum growth afterwards. A short run's growth in its first seconds does not count."""

LIVE = {
    "latency --by": ("latency", "order", "--by", "sku", "-i", "10"),
    "count --by": ("count", "order", "--by", "sku", "-i", "10"),
    "values --by": ("values", "order", "price", "--by", "sku", "-i", "10"),
    "latency method": ("latency", "-m", "Steady.", "-i", "10"),
    "trace": ("trace", "order"),
    "trace raise": ("trace", "raise"),
    "calls": ("calls", "-m", "Steady."),
    "calls --record": ("calls", "-m", "Steady.", "-o", "FOLDER/calls.rbrec"),
    "stacks": ("stacks", "--mode", "wall", "-i", "10"),
    "stacks --calls": ("stacks", "--calls", "-m", "Steady.", "-i", "10"),
    "record": ("record", "-o", "FOLDER/stacks.rbrec"),
    "top": ("top", "--mode", "wall"),
}
SHORT = ("latency --by", "calls", "stacks", "top")
"""The same values without a soak."""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 1800)
def test_memory_is_flat(
    root: None, start: Callable[..., Target], tmp_path: Path
) -> None:
    """They run at once, each with its own target, because only one may hook methods."""
    with ExitStack() as stack:
        pids = {}
        for name in LIVE if is_soak() else SHORT:
            target = start("probes/steady.rb")
            command = running(LIVE[name], target.pid, tmp_path)
            pids[name] = stack.enter_context(command)
        time.sleep(WARM_SECONDS)
        before = {name: own_memory(pid) for name, pid in pids.items()}
        time.sleep(SECONDS - WARM_SECONDS)
        grown = {name: own_memory(pid) - before[name] for name, pid in pids.items()}
    print(grown)
    assert {name: size for name, size in grown.items() if size > MOST_MIB << 10} == {}
