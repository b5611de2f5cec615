"""Developer scripts, as far as they run quickly."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from processes import ROOT, TIMEOUT


@pytest.mark.parametrize("flags", [0, 2, 100])
def test_a_ruby_is_built_with_any_number_of_flags(flags: int, tmp_path: Path) -> None:
    """The names of the tree and its log contain the flags, as far as they fit."""
    source, rubies = tmp_path / "ruby-9.9", tmp_path / "rubies"
    source.mkdir()
    (source / "vm_core.h").touch()
    configure = source / "configure"
    configure.write_text("#!/bin/sh\necho configured; exit 3\n")
    configure.chmod(0o755)
    words = [f"--with-number-{number}" for number in range(flags)]
    done = subprocess.run(
        [ROOT / "scripts" / "rubies.sh", "build-from", source, *words],
        env={**os.environ, "RBTRACE_RUBIES_DIR": str(rubies)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert "did not build" in done.stderr, done.stderr
    (log,) = rubies.glob("*.log")
    assert log.name.startswith("ruby-9.9" + "-with-number-0" * bool(flags))
    assert "configured" in log.read_text()
