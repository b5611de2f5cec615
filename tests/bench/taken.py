"""CPU that sampling by BPF takes from a program: interrupts and walks.

A loop in C measures its own losses so exactly that other programs do not matter. A loop
in Ruby also shows other costs of a walk, such as displaced caches.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from spent import middle
from table import Ratio, Row, interleaved

from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.targets.targets import Targets
from targets import HERE, Target

DEPTH = 80
SECOND = 1_000_000_000
NOTHING = "nothing"
WAYS = {
    "99 Hz": (99.0, SamplingMode.CPU, 0.5),
    "999 Hz": (999.0, SamplingMode.CPU, 2.0),
    "99 Hz, --mode offcpu": (99.0, SamplingMode.OFFCPU, 2.0),
    "99 Hz, --mode wall": (99.0, SamplingMode.WALL, 2.0),
}
"""Rate, mode, and the maximum percentage that it may take."""


def cost(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        library = str(Path(place) / "spin.so")
        source = str(HERE / "ruby" / "spin.c")
        words = ["cc", "-O2", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(words, check=True)
        script = str(HERE / "ruby" / "spin.rb")
        with closing(Target("ruby", script, str(DEPTH), library)) as target:
            lost = _measured(target, f"c {SECOND // 2}", rounds)
            turns = _measured(target, f"ruby {SECOND // 2}", rounds)
    rows = [Row("a loop in C, lost", f"{_percent(lost[NOTHING])} of its time")]
    for name, (_, _, most) in WAYS.items():
        pairs = zip(lost[name], lost[NOTHING], strict=True)
        more = [with_tool - alone for with_tool, alone in pairs]
        rows.append(Row(f"  {name}", f"{_percent(more)} more", goal=f"≤ {most} %"))
    speed = f"{median(turns[NOTHING]):,.0f} turns a second"
    rows.append(Row("a loop in Ruby, speed", speed))
    for name in WAYS:
        ratio = Ratio.of(turns[name], turns[NOTHING])
        rows.append(Row(f"  {name}", "", NOTHING, ratio))
    return rows


def _percent(lost: list[float]) -> str:
    return f"{middle([one / 1e7 for one in lost], '.3f')} %"


def _measured(target: Target, command: str, rounds: int) -> dict[str, list[float]]:
    variants = {name: _one(target, command, name) for name in (NOTHING, *WAYS)}
    return interleaved(variants, rounds)


def _one(target: Target, command: str, name: str) -> Callable[[], float]:
    def run() -> float:
        if name == NOTHING:
            return float(target.ask(command))
        rate, mode, _ = WAYS[name]
        targets = Targets.from_pids([target.pid])
        options = SamplingOptions(rate=rate, mode=mode, engine=EngineChoice.BPF)
        with closing(targets), Sampling(targets, options):
            return float(target.ask(command))

    return run
