"""Attaching to a program succeeds while the program is busy."""

from __future__ import annotations

from collections import Counter

import builds
import pytest

from rbtrace_py.errors import VmNotStarted
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import attach
from ruby_builds import Build, each_build

ATTACHES = 100


@pytest.mark.root
@each_build
def test_a_busy_program_is_attached_to(build: Build, root: None) -> None:
    """The program constantly switches fibers and so its stack."""
    found = Counter[str]()
    with builds.running(build, "stacks/truth_busy.rb", 2718) as running:
        for _ in range(ATTACHES):
            with Process(running.pid) as process:
                try:
                    attach(process)
                    found["attached"] += 1
                except VmNotStarted:
                    found["between two fibers"] += 1  # commands retry
    assert found["attached"] >= ATTACHES / 2, found
