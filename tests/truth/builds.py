"""The number of stops in the truth tests of each Ruby, and the start of its targets.

RBTRACE_RUBY is the path of the only Ruby to test. The default is all of ruby_builds.py.
RBTRACE_STOPS is the number of stops per test.
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
    """Return the number of stops: 1,000 in a soak, otherwise 200, and 20 for this
    machine's own Ruby, which `make test` runs."""
    if STOPS:
        return STOPS
    if is_soak():
        return 1000
    return 20 if build == Build(rubies.HERE) else 200


@cache
def version(build: Build) -> str:
    """Return the version, as ``3.1.7``. Skip the test if the Ruby or its JIT is
    missing."""
    words = [*build.words(), "--version"]
    said = subprocess.check_output(words, text=True).split()
    return said[1].partition("p")[0]


@contextmanager
def running(build: Build, script: str, *arguments: object) -> Iterator[rubies.Running]:
    """Start targets/SCRIPT in a Ruby, and end it afterwards."""
    words = [*build.words(), "-W0", str(TARGETS / script)]
    target = Target(*words, *map(str, arguments), env={"RUBYOPT": ""})
    try:
        yield rubies.Running(target, ruby_builds.innermost(target.pid))
    finally:
        target.close()
