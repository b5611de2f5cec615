"""Recordings in fixtures/walker: the memory of a Ruby, and its own view of its
stacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from processes import ROOT
from rbtrace_py.rubyvm.layout import Layout
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from recorded_memory import ReplayMemory

RECORDED = {
    path.stem: path
    for path in sorted((ROOT / "tests" / "fixtures" / "walker").rglob("*.memory"))
}
"""The recording's file by the name of its Ruby."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording, and the start of its walk."""

    memory: ReplayMemory
    layout: Layout
    vm: int
    symbols: int
    stacks: dict[str, Any]
    """[path, line, label] of each frame, by the thread's name or number."""
    zjit: int | None


def replay(name: str) -> Replay:
    """Read the recording of the Ruby ``name``."""
    about = json.loads(RECORDED[name].with_suffix(".json").read_text())
    layout = layout_from(table_for(about["version"]), about["version"])
    memory = ReplayMemory(RECORDED[name].read_bytes())
    roots = about["vm"], about["symbols"]
    return Replay(memory, layout, *roots, about["stacks"], about.get("zjit"))
