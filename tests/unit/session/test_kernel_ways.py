"""Older kernels' ways to walk stacks, which this one has as well."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from processes import TARGETS, Target, read_line
from rbtrace_py.bpf import stack_walker
from rbtrace_py.model.stacks import Sample
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import sampling_passes
from rbtrace_py.session.targets.targets import Targets

REASONS = {
    "Waits#wait_sleep": "(sleep)",
    "Waits#wait_lock": "(lock)",
    "Waits#wait_socket": "(socket)",
    "Waits#wait_pipe": "(pipe)",
    "Waits#wait_child": "(child process)",
}


@pytest.mark.parametrize("way", stack_walker._WAYS, ids=["6.9", "5.19", "5.15", "5.11"])
def test_each_way(root: None, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_walker, "_WAYS", (way,))
    options = SamplingOptions(mode=SamplingMode.WALL, engine=EngineChoice.BPF)
    weights: Counter[tuple[str, str]] = Counter()

    def add(sample: Sample) -> None:
        names = [frame.name for frame in sample.stack.frames]
        method = next((name for name in names if name in REASONS), "")
        weights[method, names[-1] if names else ""] += sample.weight

    with (
        closing(Target("ruby", TARGETS / "off_cpu.rb")) as target,
        closing(Targets.from_pids([target.pid])) as targets,
        Sampling(targets, options) as sampling,
    ):
        passes = sampling_passes(sampling, add)
        lines = [target.step("waits 0.2")]
        while lines[-1] != "done":
            lines.append(read_line(target.process.stdout))
        passes.finish()
    for method, reason in REASONS.items():
        # It began a moment after what it waits for had.
        assert weights[method, reason] >= 0.15e9, weights
