"""The Rubies that tests run: this machine's, and Debian's in the chroots of rubies.sh.

`make test` runs the tests with this machine's Ruby. `make test-all` also runs them with
the others: a test that needs another Ruby is marked `rubies`, usually by ``EACH``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT, TARGETS, Target, comes_true
from rbtrace_py.errors import VmNotStarted
from rbtrace_py.linux.memory import Memory, ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import Attached, attach
from rbtrace_py.rubyvm.vm import RubyVM

NAMES = ("2.7", "3.1", "3.3", "3.4")
HERE = "here"
"""The name of this machine's own Ruby."""
SCRIPT = ROOT / "scripts" / "rubies.sh"
WAITING = "$stdout.sync = true; puts :ready; $stdin.gets"
USER = 12345
"""An unused user ID."""


def chroot(*values: str) -> Any:
    """Return parameters of a test that name chroots, marked ``rubies``."""
    return pytest.param(*values, marks=pytest.mark.rubies)


OTHERS = tuple(map(chroot, NAMES))
"""To parametrize a test with each chroot."""
EACH = (HERE, *OTHERS)
"""To parametrize a test with this machine's Ruby and each chroot."""
BUILT: dict[str, Callable[[], list[str]]] = {}
"""The words that run a Ruby of ruby_builds.py, by its name."""
is_allowed = False
"""True if the running test may use a chroot. conftest sets it by the test's marks."""

each_ruby = pytest.mark.parametrize("ruby", EACH, indirect=True)


@functools.cache
def minor(name: str) -> str:
    """Return the minor version of the Ruby ``name``, as 3.1."""
    if name != HERE:
        return name[:3]
    words = ["ruby", "-e", "print RUBY_VERSION[/\\d+\\.\\d+/]"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


_CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
DIRECTORY = Path(os.environ.get("RBTRACE_RUBIES_DIR") or f"{_CACHE}/rbtrace-py/rubies")
"""The folder of the chroots, determined before a test has its own cache."""


def need(name: str) -> None:
    """Skip the test if the chroot does not exist."""
    assert is_allowed, "a test that needs a chroot is marked rubies, or smoke"
    if not (DIRECTORY / name / "usr" / "bin" / "ruby").exists():
        pytest.skip(f"no chroot of Ruby {name}: `scripts/rubies.sh build {name}`")
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")


def command(name: str, program: str = WAITING) -> list[str]:
    """Return the words that run ``program`` in the Ruby ``name``."""
    words = ["ruby", "--disable-gems", "-e", program]
    if name == HERE:
        return words
    need(name)
    return ["chroot", str(DIRECTORY / name), *words]


def ruby(name: str) -> list[str]:
    """Return the words that run the Ruby ``name``, with this checkout in its place."""
    if name == HERE:
        return ["ruby"]
    if name in BUILT:
        return BUILT[name]()
    need(name)
    return [str(SCRIPT), "run", name, "ruby"]


def as_user(
    words: list[str], uid: int = USER, groups: str = "--clear-groups"
) -> list[str]:
    """Return the same words, run as another user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, *words]


def own_ruby() -> tuple[Path, Path]:
    """Return the program and the library of this machine's Ruby."""
    program = Path(shutil.which("ruby") or "").resolve()
    listing = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    words = [line.split() for line in listing.splitlines() if "libruby" in line]
    if not words:
        pytest.skip("this Ruby has no libruby")
    return program, Path(words[0][2]).resolve()


@dataclass
class Running:
    """A running target. ``target`` is the started process, and ``pid`` is Ruby
    itself."""

    target: Target
    pid: int

    @property
    def ready(self) -> str:
        return self.target.ready

    def attach(self) -> Attached:
        """Attach as commands do, and retry if it was paused between two fibers."""
        found: list[Attached] = []

        def is_attached() -> bool:
            with contextlib.suppress(VmNotStarted):
                found.append(attach(Process(self.pid)))
            return bool(found)

        assert comes_true(is_attached, 2), "its VM is still starting"
        return found[0]

    def vm(self, memory: Memory | None = None) -> RubyVM:
        found = self.attach()
        memory = memory or ProcessMemory(self.pid)
        addresses = (found.vm_address, found.symbols_address)
        return RubyVM(memory, found.layout, *addresses, zjit=found.zjit_address)


def innermost(pid: int) -> int:
    while True:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not words:
            return pid
        pid = int(words[0])


@contextmanager
def running(name: str, script: str, *arguments: str) -> Iterator[Running]:
    """Start targets/SCRIPT in the Ruby ``name``, and end it afterwards."""
    target = Target(*ruby(name), str(TARGETS / script), *arguments)
    try:
        yield Running(target, innermost(target.pid))
    finally:
        target.close()
