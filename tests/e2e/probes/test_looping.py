"""A traced program that constantly defines and disables probes, forks, and exits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from commands import Tracer, answer
from processes import LIB, ROOT, TARGETS, Target, is_soak

THREADS = 8
EVENTS = 3
"""Events of loop:round per round and thread."""
ROUNDS = 5 if is_soak() else 2
SECONDS = 300
"""Seconds that a soak takes."""
STEPS = 2
"""Minimum number of steps. The first step also allocates what is allocated once."""
GROWTH = 1024
"""KiB by which memory may vary, regardless of the number of steps."""
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"


class Use(NamedTuple):
    """The resources of a process, with memory in KiB."""

    memory: int
    descriptors: int
    images: int
    mappings: int

    @classmethod
    def of(cls, pid: int) -> Use:
        folder = Path(f"/proc/{pid}")
        maps = (folder / "maps").read_text().splitlines()
        rollup = (folder / "smaps_rollup").read_text()
        dirty = re.findall(r"^Private_Dirty: +(\d+)", rollup, re.M)
        return cls(
            int(dirty[0]),
            len(os.listdir(folder / "fd")),
            sum("memfd:" in line for line in maps),
            len(maps),
        )


def plain(_folder: Path) -> tuple[Path, dict[str, str]]:
    return LIB, {}


def sanitized(folder: Path) -> tuple[Path, dict[str, str]]:
    """Build the extension with ASan and UBSan into a copy of the gem's library.

    Return the copy and the environment variables that a Ruby needs to load it.
    """
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True
    )
    preload = Path(found.stdout.strip())
    if not preload.is_absolute():
        pytest.skip("no libasan: gcc brings it")
    build = folder / "build"
    build.mkdir()
    extconf = ROOT / "ext/libstapsdt/ruby/extconf.rb"
    flags = f"-O1 -g -fno-omit-frame-pointer {SANITIZERS}"
    for command in (
        ["ruby", extconf],
        ["make", f"optflags={flags}", f"LDSHARED=gcc -shared {SANITIZERS}"],
    ):
        subprocess.run(command, cwd=build, check=True, stdout=subprocess.DEVNULL)
    library = folder / "lib"
    shutil.copytree(LIB, library, ignore=shutil.ignore_patterns("native"))
    shutil.copy(build / "native.so", library / "tracepoint")
    return library, {
        "LD_PRELOAD": str(preload.resolve()),
        # Ruby itself frees nothing at its end. ASan keeps freed memory for a while,
        # with a quarantine per thread.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=1:"
        "thread_local_quarantine_size_kb=16",
    }


@pytest.fixture(params=[plain, sanitized])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    library, env = request.param(tmp_path)
    target = Target("ruby", f"-I{library}", TARGETS / "probes/looping.rb", env=env)
    assert f"{library}/" in Path(f"/proc/{target.pid}/maps").read_text()
    yield target
    target.close()


def step(target: Target, trace: Callable[..., Tracer]) -> None:
    """Run rounds of all threads, and count them exactly."""
    tracer = trace("count", target.pid, "loop:round", "--subprocesses", "--json")
    assert target.step(str(ROUNDS)) == "done true 0"
    (group,) = answer(tracer)["groups"]
    assert group["count"] == THREADS * ROUNDS * EVENTS


def killed_step(target: Target, trace: Callable[..., Tracer]) -> None:
    """Run rounds under a tracer of all probes, and kill the tracer."""
    tracer = trace("count", target.pid, "loop*:*", "fresh:*", "--subprocesses")
    assert target.step(str(ROUNDS)) == "done true 0"
    tracer.process.kill()
    tracer.process.wait()
    assert target.step("0") == "done false 0"


@pytest.mark.slow
def test_it_stays_flat(target: Target, trace: Callable[..., Tracer]) -> None:
    uses = []
    end = time.monotonic() + (SECONDS if is_soak() else 0)
    while len(uses) < STEPS or time.monotonic() < end:
        step(target, trace)
        killed_step(target, trace)
        uses.append(Use.of(target.pid))
    (_,) = {(use.descriptors, use.images, use.mappings) for use in uses}
    assert uses[-1].memory - uses[0].memory < GROWTH, uses
