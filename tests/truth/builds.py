"""How often the truth tests stop each Ruby, and how they start it.

RBTRACE_RUBY is the path of the one Ruby to test (by default those of ruby_builds.py);
RBTRACE_STOPS is how often each test stops it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import rubies
import ruby_builds
from processes import TARGETS, Target, is_soak
from ruby_builds import Build

STOPS = int(os.environ.get("RBTRACE_STOPS") or 0)


def stops(build: Build) -> int:
    """How often to stop a target: 1,000 times in a soak, else 200 times, and only a
    few times of this machine's own Ruby, which `make test` runs."""
    if STOPS:
        return STOPS
    if is_soak():
        return 1000
    return 20 if build == Build(rubies.HERE) else 200


@cache
def version(build: Build) -> str:
    """``3.1.7``; skips the test where it, or its JIT, is missing."""
    words = [*build.words(), "--version"]
    said = subprocess.check_output(words, text=True).split()
    return said[1].partition("p")[0]


@contextmanager
def running(build: Build, script: str, *arguments: object) -> Iterator[rubies.Running]:
    """Start targets/SCRIPT in it; ended afterwards."""
    words = [*build.words(), "-W0", str(TARGETS / script)]
    target = Target(*words, *map(str, arguments), env={"RUBYOPT": ""})
    try:
        yield rubies.Running(target, ruby_builds.innermost(target.pid))
    finally:
        target.close()
