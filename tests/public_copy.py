"""A copy of the gem, the targets, and the command that every user can read.

The checkout may be inaccessible to other users: /root has mode 0700, and so have home
directories of some distributions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from processes import MAIN, ROOT, TIMEOUT

COPIED = ("ruby/lib", "ext/agent", "tests/targets", "tracer")
PYTHON = os.path.realpath(sys.executable)
"""The interpreter that created the virtual environment."""


class PublicCopy:
    """The copy, in an existing folder.

    ``root`` corresponds to the checkout's, ``lib`` to the gem's, and ``targets`` to the
    tests'.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lib, self.targets = root / "ruby" / "lib", root / "tests" / "targets"
        root.chmod(0o755)
        for folder in COPIED:
            shutil.copytree(
                ROOT / folder,
                root / folder,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        _copy_dependencies("rbtrace-py", root / "tracer", set())

    @property
    def env(self) -> dict[str, str]:
        """The environment of the command."""
        return {**os.environ, "PYTHONPATH": str(self.root / "tracer")}

    def command(self, *words: object) -> list[str]:
        """The words that run ``rbtrace-py`` with ``env``."""
        return [PYTHON, "-c", MAIN, *map(str, words)]

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run ``command``, perhaps through a program that switches users."""
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=self.env
        )


def _copy_dependencies(name: str, target: Path, seen: set[str]) -> None:
    """Copy the distribution's dependencies that only the virtual environment has."""
    for requirement in metadata.requires(name) or ():
        found = re.match(r"[\w.-]+", requirement)
        if found is None or "extra ==" in requirement or found[0] in seen:
            continue
        seen.add(found[0])
        try:
            distribution = metadata.distribution(found[0])
        except metadata.PackageNotFoundError:
            continue  # for another version of Python
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if source.is_relative_to(sys.prefix) and ".." not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target / file)
        _copy_dependencies(found[0], target, seen)
