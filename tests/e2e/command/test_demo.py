"""The whole script of ``make demo``, and its leftovers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from processes import ROOT


@pytest.fixture
def demo(root, tmp_path) -> str:
    if not (ROOT / ".venv" / "bin" / "rbtrace-py").exists():
        pytest.skip("make setup makes what the demo runs")
    done = subprocess.run(
        [str(ROOT / "scripts" / "demo.sh")],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo(demo, tmp_path):
    """It ends with the shop's stacks and their flame graph, in 80 columns."""
    parts = re.split(r"^\$ ", demo, flags=re.MULTILINE)
    verbs = [re.match(r"rbtrace-py (\w+)", part) for part in parts]
    assert [verb[1] for verb in verbs if verb] == [
        *("probes", "count", "trace", "latency", "latency"),
        *("record", "report", "report", "report"),
    ]
    lines = parts[-1].splitlines()
    shown = (
        demo.partition("$ cd ")[2]
        .replace(str(ROOT), "")
        .replace(str(tmp_path), "")
        .splitlines()
    )
    assert [line for line in shown if len(line) > 80] == []
    sleeps = [re.search(r";Kernel#sleep;\(sleep\) (\d+)$", line) for line in lines]
    slept = sum(int(sleep[1]) for sleep in sleeps if sleep)
    assert slept > 4.5e9  # half of the time of three workers in three seconds
    assert any(line.startswith("<main>;Shop.serve;Array#map;") for line in lines)
    (picture,) = [line.strip() for line in lines if line.endswith(".svg")]
    assert Path(picture).parent.parent == tmp_path
    assert "Shop::Till#checkout" in Path(picture).read_text()
    made = sorted(path.name for path in Path(picture).parent.iterdir())
    assert made == ["shop.rbrec", "shop.svg"]
    assert lines[-2] == f"  rm -r {Path(picture).parent}"
