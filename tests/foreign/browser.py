"""Headless Chromium: pages are opened, driven by a script, and inspected."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_RESULT = "data-result"
_PATIENCE_MS = 10_000
"""Time limit by the page's virtual clock, which skips the time that the page waits."""


class Browser:
    """One profile folder. Each page runs in its own process."""

    def __init__(self, folder: Path) -> None:
        command = shutil.which("chromium") or shutil.which("google-chrome")
        if command is None:
            pytest.skip("no chromium: scripts/setup.sh --test installs it")
        self._command = command
        self._folder = folder

    def _run(
        self,
        url: str,
        *options: str,
        dark: bool = False,
        patience_ms: int = _PATIENCE_MS,
    ) -> str:
        theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = subprocess.run(
            [
                self._command,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--allow-file-access-from-files",
                f"--user-data-dir={self._folder / 'profile'}",
                f"--virtual-time-budget={patience_ms}",
                *theme,
                *options,
                url,
            ],
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self, url: str, has: str) -> str:
        """Return the page's elements once ``has`` is among them.

        The page's clock runs ahead while Chromium waits for a busy machine. In this
        case, the page is opened again with a longer limit.
        """
        page = ""
        for times in (1, 4, 16):
            page = self._run(url, "--dump-dom", patience_ms=times * _PATIENCE_MS)
            if has in page:
                break
        return page

    def picture(
        self, url: str, path: Path, size: tuple[int, int], dark: bool = False
    ) -> None:
        """Return a screenshot. RBTRACE_PICTURES names a folder that gets a copy."""
        width, height = size
        self._run(
            url, f"--screenshot={path}", f"--window-size={width},{height}", dark=dark
        )
        assert path.stat().st_size > 0
        if folder := os.environ.get("RBTRACE_PICTURES"):
            shutil.copy(path, folder)

    def drive(self, svg: str, script: str, *options: str) -> Any:
        """Open an SVG, run the body of a function in it, and return its result."""
        body = f"""
            let result;
            try {{ result = (function () {{ {script} }})(); }}
            catch (error) {{ result = String(error); }}
            document.documentElement.setAttribute('{_RESULT}', JSON.stringify(result));
        """
        assert svg.endswith("</svg>\n")
        driven = (
            svg[: -len("</svg>\n")] + f"<script><![CDATA[{body}]]></script></svg>\n"
        )
        path = self._folder / "driven.svg"
        path.write_text(driven, encoding="utf-8")
        page = self._run(path.as_uri(), "--dump-dom", *options)
        found = re.search(f'{_RESULT}="([^"]*)"', page)
        assert found, page[-2000:]
        return json.loads(html.unescape(found[1]))
