"""The cost of hooks of all methods to a Rails request, in processes without a server.

This is as exact as a shared machine allows: no load generator, no collections, and the
CPU time of one thread, in a real-time class if permitted.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from realapp import PACKAGES, can_run
from table import Row, compared, interleaved

from rbtrace_py.agent.arming import Armed, ArmRequest
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from targets import HERE, Target

NOTHING, EMPTY = "nothing", "an empty hook on call and return"
PROCESSES = 6
"""Processes differ by a tenth, because memory placement differs."""
GOALS = {"count method": 1.05, "latency method": 1.12, "calls --slow 100": 1.12}
"""Goals compared with the empty hook."""


def cost(rounds: int) -> list[Row]:
    """Compare each mode with the empty hook, and the empty hook with none."""
    if not can_run():
        return [Row("a Rails request", f"not measured: install {PACKAGES}")]
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(PROCESSES):
        for name, times in _rounds(max(1, rounds // PROCESSES)).items():
            found[name] += times
    return [
        compared(EMPTY, found, (EMPTY, NOTHING), None),
        *(compared(name, found, (name, EMPTY), goal) for name, goal in GOALS.items()),
    ]


def _rounds(rounds: int) -> Mapping[str, Sequence[float]]:
    """Return the times of each mode in one process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP_DATABASE"] = str(Path(folder) / "shop.sqlite3")
        target = Target("ruby", str(HERE / "ruby" / "request.rb"))
        target.in_real_time()
        with closing(target), Process(target.pid) as process:
            modes = _modes(hook_offsets(process))
            return interleaved(
                {
                    name: lambda what=what: _measure(target, process, what)  # type: ignore[misc]
                    for name, what in modes.items()
                },
                rounds,
            )


def _modes(offsets: dict[str, int] | None) -> Mapping[str, ArmRequest | None]:
    table, slow = HookMode.TABLE, HookMode.SLOW
    return {
        NOTHING: None,
        EMPTY: ArmRequest(HookMode.EMPTY, offsets=offsets),
        "count method": ArmRequest(table, histograms=False, offsets=offsets),
        "latency method": ArmRequest(table, offsets=offsets),
        "calls --slow 100": ArmRequest(slow, threshold_ns=10**8, offsets=offsets),
    }


def _measure(target: Target, process: Process, what: ArmRequest | None) -> float:
    if what is None:
        return float(target.ask("serve"))
    with Armed(process, what):
        target.ask("serve")
        return float(target.ask("serve"))
