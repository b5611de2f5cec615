"""Empty virtual environments with a wheel of this checkout in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from processes import ROOT

SYSTEM_PYTHON = Path("/usr/bin/python3")

HIDE = """
mount -t tmpfs none /usr/lib/python3/dist-packages/bcc
for library in /usr/lib/*/libbcc.so.0; do mount --bind /dev/null "$library"; done
exec "$@"
"""
NO_BCC = ("unshare", "--mount", "sh", "-ec", HIDE, "sh")
"""The words that run a command without access to bcc and LLVM."""


def copy_of_sources(folder: Path) -> Path:
    """Copy the package's sources as a fresh clone has them; building adds to it."""
    listed = subprocess.run(
        [*["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def pythons() -> list[Path]:
    """Return the system's Python, and the first on the PATH if it is another."""
    outside = os.pathsep.join(
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not folder.startswith(sys.prefix)
    )
    found = [SYSTEM_PYTHON]
    if (first := shutil.which("python3", path=outside)) is not None:
        done = subprocess.run(
            [first, "-c", "import sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(Path(done.stdout.strip()).resolve())
    return list(dict.fromkeys(path.resolve() for path in found))


class Environment:
    """An empty virtual environment of ``python``."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "RBTRACE"))
        }
        self._run(python, "-m", "venv", folder)

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "rbtrace-py"

    def pip(self, *words: object) -> str:
        return self._run(self.folder / "bin" / "python", "-m", "pip", *words)

    def run(
        self, *words: object, env: dict[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run ``rbtrace-py``, and check that it ends with ``code``."""
        done = subprocess.run(
            [*map(str, [self.command, *words])],
            capture_output=True,
            text=True,
            timeout=120,
            env={**self.env, **(env or {})},
            cwd="/",
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def _run(self, *words: object) -> str:
        done = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            timeout=600,
            env=self.env,
            cwd="/",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
