"""The Rubies that tests run: Debian's, in chroots that scripts/rubies.sh has built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import ROOT, TARGETS, Target
from rbtrace_py.linux.memory import Memory, ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import Attached, attach
from rbtrace_py.rubyvm.vm import RubyVM

NAMES = ("2.7", "3.1", "3.3", "3.4")
SCRIPT = ROOT / "scripts" / "rubies.sh"


def directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("RBTRACE_RUBIES_DIR") or f"{cache}/rbtrace-py/rubies")


def need(name: str) -> None:
    """Skip where the chroot is not there."""
    if not (directory() / name / "usr" / "bin" / "ruby").exists():
        pytest.skip(f"no chroot of Ruby {name}: `scripts/rubies.sh build {name}`")
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")


@dataclass
class Running:
    """A target in a chroot; ``target`` is what ran it, ``pid`` Ruby itself."""

    target: Target
    pid: int

    @property
    def ready(self) -> str:
        return self.target.ready

    def attach(self) -> Attached:
        return attach(Process(self.pid))

    def vm(self, memory: Memory | None = None) -> RubyVM:
        found = self.attach()
        memory = memory or ProcessMemory(self.pid)
        return RubyVM(memory, found.layout, found.vm_address, found.symbols_address)


def _innermost(pid: int) -> int:
    while True:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not words:
            return pid
        pid = int(words[0])


@contextmanager
def running(name: str, script: str, *arguments: str) -> Iterator[Running]:
    """Start targets/SCRIPT in the Ruby called ``name``; ended afterwards."""
    need(name)
    path = str(TARGETS / script)
    target = Target(str(SCRIPT), "run", name, "ruby", path, *arguments)
    try:
        yield Running(target, _innermost(target.pid))
    finally:
        target.close()
