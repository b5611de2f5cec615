"""Real Rubies to look into: this machine's, and those of Debian's suites."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUBIES = Path(
    os.environ.get("RBTRACE_RUBIES_DIR")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "rbtrace-py/rubies"
)


def _all_tests_conftest() -> Any:
    """tests/conftest.py, whatever module is called ``conftest`` by now."""
    path = ROOT / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("all_tests_conftest", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Target = _all_tests_conftest().Target
"""A process that says ``ready``."""

NAMES = ["here", "2.7", "3.1", "3.3", "3.4"]
WAITING = "$stdout.sync = true; puts :ready; $stdin.gets"
USER = 12345
"""A user id that nobody has."""

each_ruby = pytest.mark.parametrize("ruby", NAMES, indirect=True)


def command(name: str, program: str = WAITING) -> list[str]:
    """Run ``program`` in the Ruby of that name."""
    words = ["ruby", "--disable-gems", "-e", program]
    if name == "here":
        return words
    if not (RUBIES / name / "usr/bin/ruby").exists():
        pytest.skip(f"the chroot of Ruby {name} is not built")
    return ["chroot", str(RUBIES / name), *words]


def as_user(
    words: list[str], uid: int = USER, groups: str = "--clear-groups"
) -> list[str]:
    """The same as another user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, *words]


def own_ruby() -> tuple[Path, Path]:
    """The program and the library of this machine's Ruby."""
    program = Path(shutil.which("ruby") or "").resolve()
    listing = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    words = [line.split() for line in listing.splitlines() if "libruby" in line]
    if not words:
        pytest.skip("this Ruby has no libruby")
    return program, Path(words[0][2]).resolve()
