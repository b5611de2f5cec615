"""Imports are most of a command's start-up: each imports only what it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from processes import ROOT

HEAVY = (
    "bcc",
    "elftools",
    "hdrh",
    "http",
    "rich",
    "rbtrace_py.bpf.compiler",
    "rbtrace_py.report.flamegraph.svg",
    "rbtrace_py.session.probes.session",
    "rbtrace_py.session.probes.filters",
)


@pytest.mark.parametrize("command", ["stacks", "record", "dump"])
def test_the_stacks_of_a_ruby_need_nothing_heavy(command: str) -> None:
    code = (
        "import sys\n"
        "import rbtrace_py.cli.main\n"
        f"import rbtrace_py.cli.{command}\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "tracer")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(HEAVY) & set(done.stdout.split()) == set()


def test_nothing_is_imported_before_a_ctrl_c_has_an_answer() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import rbtrace_py.cli.start\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "tracer")},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["__future__", "rbtrace_py", "rbtrace_py.cli", "rbtrace_py.cli.start"]
    assert [m for m in done.stdout.split() if m != "__future__"] == expected[1:]


def test_no_command_imports_the_entry_point() -> None:
    folder = ROOT / "tracer" / "rbtrace_py" / "cli"
    importing = [
        path.name
        for path in folder.rglob("*.py")
        if "cli.main import" in path.read_text()
    ]
    assert importing == ["start.py"]
