"""The docs build as a site (`make docs`) without broken links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from processes import ROOT

pytestmark = pytest.mark.install


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in tmp_path.glob("*.html")} == {*pages, "404"}
