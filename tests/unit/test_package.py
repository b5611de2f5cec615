"""What a wheel holds: everything that is used at run time, also by way of an sdist."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "ext" / "agent"
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
SHIPPED = {
    "rbtrace_py/agent/load.rb": "tracer/rbtrace_py/agent/load.rb",
    "rbtrace_py/agent/first/tracepoint/agent.rb": (
        "tracer/rbtrace_py/agent/first/tracepoint/agent.rb"
    ),
    "rbtrace_py/report/flamegraph/flamegraph.js": (
        "tracer/rbtrace_py/report/flamegraph/flamegraph.js"
    ),
    **{
        f"rbtrace_py/agent/source/{path.relative_to(AGENT)}": path.relative_to(ROOT)
        for kind in ("agent.*", "agent/*.rb", "hook/*.h")
        for path in AGENT.glob(kind)
    },
}
"""By its place in the wheel: where it stands in a checkout."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the package is made of, as building leaves files in it."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools")
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("tracer", "ext/agent"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(what: str, folder: Path, output: Path) -> Path:
    output.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(output)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


def check(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for inside, outside in SHIPPED.items():
            assert opened.read(inside) == (ROOT / outside).read_bytes()


def test_a_wheel_of_a_checkout(checkout: Path, tmp_path: Path) -> None:
    check(build("build_wheel", checkout, tmp_path / "out"))


def test_a_wheel_of_an_sdist(checkout: Path, tmp_path: Path) -> None:
    sdist = build("build_sdist", checkout, tmp_path / "out")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    check(build("build_wheel", unpacked, tmp_path / "out"))
