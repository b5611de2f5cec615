"""From the command to the first data, and where the time goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from table import Row, compared, interleaved, seconds

from targets import HERE, ROOT, Target, ruby_target

MAIN = "from rbtrace_py.cli.main import main; main()"
PROBE = "bench:two"
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
    target = ruby_target()
    with tempfile.TemporaryDirectory() as place:
        bytecode = {"PYTHONPYCACHEPREFIX": os.path.join(place, "bytecode")}
        warm = {**bytecode, "RBTRACE_CACHE_DIR": os.path.join(place, "warm")}
        none = {**bytecode, "RBTRACE_CACHE_DIR": ""}
        try:
            _attached(target, warm)
            _attached(target, none)
            variants: dict[str, Callable[[], float]] = {
                "warm": lambda: _exit(target, warm),
                "cold": lambda: _exit(target, none),
                "warm data": lambda: _attached(target, warm),
                "cold data": lambda: _attached(target, none),
            }
            if shutil.which("bpftrace"):
                variants["bpftrace"] = lambda: _bpftrace(target)
            found = interleaved(variants, rounds)
            rows = _rows(found)
            for name, cache in (("warm", warm), ("cold", none)):
                rows += _stages(target, name, cache, rounds)
        finally:
            target.close()
    return rows


def _rows(found: Mapping[str, list[float]]) -> list[Row]:
    rows = []
    for name, what in (("warm", "compiled before"), ("cold", "compiled anew")):
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
    """With bytecode kept, as an installed program has it."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "tracer"), **extra}


def _command(target: Target, *options: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "count", str(target.pid), PROBE, *options]


def _exit(target: Target, cache: Mapping[str, str]) -> float:
    """Seconds of a command that ends as soon as it is attached."""
    start = time.perf_counter()
    subprocess.run(
        _command(target, "--duration", "1ms"),
        env=_environment(cache),
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - start


def _attached(target: Target, cache: Mapping[str, str]) -> float:
    """Seconds until every hit counts."""
    read, write = os.pipe()
    start = time.perf_counter()
    with subprocess.Popen(
        _command(target, "--duration", "1ms"),
        env=_environment({**cache, "RBTRACE_READY_FD": str(write)}),
        pass_fds=(write,),
        stdout=subprocess.DEVNULL,
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
