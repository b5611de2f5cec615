"""Modules that a report must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TERMINAL = "doctor events histogram histogram_rows notes probes results tables".split()  # noqa: SIM905
MODULES = [
    "exchange.hlog",
    *(f"json.{name}" for name in ("results", "setup", "trace")),
    *(f"terminal.{name}" for name in TERMINAL),
]
SLOW = ("hdrh", "difflib", "rich", "click", "textwrap.", "ctypes")


def test_nothing_slow_is_imported() -> None:
    imports = "; ".join(f"import rbtrace_py.report.{name}" for name in MODULES)
    show = "import sys; print(*sys.modules)"
    filters = "import rbtrace_py.session.probes.filters"
    root = Path(__file__).parents[3] / "tracer"
    command = [sys.executable, "-S", "-c", f"{imports}; {filters}; {show}"]
    loaded = subprocess.check_output(command, text=True, env={"PYTHONPATH": str(root)})
    assert [name for name in loaded.split() if name.startswith(SLOW)] == []
