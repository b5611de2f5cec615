"""Time from the command to its first data, and its stages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

from spent import middle
from table import Row, compared, interleaved, seconds

from targets import HERE, ROOT, Target, ruby_target

MAIN = "from rbtrace_py.cli.main import main; main()"
PROBE = "bench:two"
SAMPLERS = ("stacks", "record", "top")
GOALS = {"warm": "≤ 0.3 s", "cold": "≤ 0.7 s"}
"""The stages of a sampling command: with programs from the cache, and compiled."""
STAGES = (
    "interpreter",
    "imports",
    "scan",
    "import bcc",
    "compile",
    "maps",
    "load",
    "attach",
    "detach",
    "end",
    "rest",
)


def measure(rounds: int) -> list[Row]:
    with closing(ruby_target()) as target, _caches() as caches:
        count = ["count", str(target.pid), PROBE]
        for cache in caches.values():
            _attached(count, cache)
        variants: dict[str, Callable[[], float]] = {}
        for name, cache in caches.items():
            variants[name] = _one(_exit, count, cache)
            variants[f"{name} data"] = _one(_attached, count, cache)
        if shutil.which("bpftrace"):
            variants["bpftrace"] = lambda: _bpftrace(target)
        found = interleaved(variants, rounds)
        rows = _rows(found)
        for name, cache in caches.items():
            rows += _stages(target, name, cache, rounds)
    return rows


def sampling(rounds: int) -> list[Row]:
    """Measure the time from the command to the first stacks, for each sampling
    command."""
    variants: dict[str, Callable[[], float]] = {}
    with closing(ruby_target()) as target, _caches() as caches:
        pid, recording = str(target.pid), os.path.join(caches["warm"][_CACHE], "out")
        for name, cache in caches.items():
            for verb in SAMPLERS:
                out = ["-o", recording + ".rbrec"] if verb == "record" else []
                words = [verb, pid, "--engine", "bpf", *out]
                _attached(words, cache)
                variants[f"{verb} {name}"] = _one(_attached, words, cache)
        found = interleaved(variants, rounds)
    return [
        Row(
            f"{verb}, command to first tick, {_CACHED[name]}",
            f"{middle(found[f'{verb} {name}'], '.3f')} s",
            goal=GOALS[name],
        )
        for name in GOALS
        for verb in SAMPLERS
    ]


_CACHE = "RBTRACE_CACHE_DIR"
_CACHED = {"warm": "compiled before", "cold": "compiled anew"}


@contextmanager
def _caches() -> Iterator[dict[str, dict[str, str]]]:
    """Return environments in which programs are already compiled, or compiled each
    time."""
    with tempfile.TemporaryDirectory() as place:
        bytecode = {"PYTHONPYCACHEPREFIX": os.path.join(place, "bytecode")}
        warm = {**bytecode, _CACHE: os.path.join(place, "warm")}
        yield {"warm": warm, "cold": {**bytecode, _CACHE: ""}}


def _one(
    measured: Callable[[Sequence[str], Mapping[str, str]], float],
    words: Sequence[str],
    cache: Mapping[str, str],
) -> Callable[[], float]:
    return lambda: measured(words, cache)


def _rows(found: Mapping[str, list[float]]) -> list[Row]:
    rows = []
    for name, what in _CACHED.items():
        label = f"count, attach and exit, {what}"
        if "bpftrace" in found:
            rows.append(compared(label, found, (name, "bpftrace"), None, seconds))
        else:
            rows.append(Row(label, seconds(median(found[name])), "no bpftrace here"))
        rows.append(
            Row(
                f"count, command to attached, {what}",
                seconds(median(found[f"{name} data"])),
                goal="< 0.7 s",
            )
        )
    return rows


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that keeps bytecode, as an installed package does."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "tracer"), **extra}


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", MAIN, *words, "--duration", "1ms"]


def _exit(words: Sequence[str], cache: Mapping[str, str]) -> float:
    """Return the seconds of a command that ends as soon as it is attached."""
    start = time.perf_counter()
    subprocess.run(
        _command(words), env=_environment(cache), check=True, capture_output=True
    )
    return time.perf_counter() - start


def _attached(words: Sequence[str], cache: Mapping[str, str]) -> float:
    """Return the seconds until every hit counts."""
    read, write = os.pipe()
    start = time.perf_counter()
    with subprocess.Popen(
        _command(words),
        env=_environment({**cache, "RBTRACE_READY_FD": str(write)}),
        pass_fds=(write,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        os.close(write)
        with os.fdopen(read) as ready:
            assert ready.readline() == "attached\n"
        return time.perf_counter() - start


def _bpftrace(target: Target) -> float:
    script = f"usdt:*:{PROBE} {{ @ = count(); }} interval:ms:1 {{ exit(); }}"
    start = time.perf_counter()
    subprocess.run(
        ["bpftrace", "-p", str(target.pid), "-e", script],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - start


def _stages(
    target: Target, name: str, cache: Mapping[str, str], rounds: int
) -> list[Row]:
    found = [_stages_once(target, cache) for _ in range(rounds)]
    return [
        Row(f"  {name}: {stage}", f"{median(f[stage] for f in found) * 1000:.0f} ms")
        for stage in STAGES
    ]


def _stages_once(target: Target, cache: Mapping[str, str]) -> dict[str, float]:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HERE / "stages.py"), str(start), str(target.pid), PROBE],
        env=_environment(cache),
        check=True,
        capture_output=True,
        text=True,
    )
    whole = time.monotonic() - start
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["end"] = whole - found.pop("done")
    found["rest"] = whole - sum(found.values())
    return found
