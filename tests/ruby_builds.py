"""Every Ruby that tests run, of each kind of build, with its JITs off and on.

In addition to this machine's Ruby and Debian's (rubies.py), there are trees built from
source. scripts/rubies.sh unpacks them from ../shared/rubies, as built and stripped.
RBTRACE_RUBY=/dir/bin/ruby replaces all of them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rubies
from processes import ROOT, TARGETS, Target

SHARED = Path(os.environ.get("RBTRACE_SHARED") or ROOT.parent / "shared")
ARCHIVES = ("3.2.8-shared", "4.0.5-shared", "4.1.0dev-shared")
TREES = (*ARCHIVES, *(f"{name}-stripped" for name in ARCHIVES))
JITS = {
    "yjit": ("--yjit", "--yjit-call-threshold=1"),
    "zjit": ("--zjit", "--zjit-call-threshold=2"),
    "zjit-default": ("--zjit",),
}
"""Options by which a JIT compiles nearly all that runs, or as it comes: some frames are
the interpreter's then, and change to the JIT's."""


_LARGEST_VVAR = 1 << 16


@dataclass(frozen=True)
class Build:
    """A Ruby of one kind of build.

    ``name`` is from rubies.py or TREES, or the path of a program. ``jit`` is from JITS,
    or empty without a JIT.
    """

    name: str
    jit: str = ""

    def __str__(self) -> str:
        name = Path(self.name).name if "/" in self.name else self.name
        return f"{name}-{self.jit}" if self.jit else name

    @property
    def is_tree(self) -> bool:
        """Return whether it is built from source."""
        return "/" in self.name or self.name in TREES

    @property
    def program(self) -> Path:
        """Return a tree's ``bin/ruby``. Skip the test if it is missing."""
        if "/" in self.name:
            return Path(self.name)
        unpack(self.name)
        return rubies.DIRECTORY / self.name / "bin" / "ruby"

    def words(self) -> list[str]:
        """Return the words that run it. Skip the test if it or its JIT is missing."""
        words = self._words()
        return [*words, *jit_options(tuple(words), self.jit)]

    def _words(self) -> list[str]:
        if self.is_tree:
            return [str(self.program)]
        if self.name == rubies.HERE:
            return ["ruby"]
        rubies.need(self.name)
        return [str(rubies.SCRIPT), "run", self.name, "ruby"]


@functools.cache
def unpack(name: str) -> None:
    """Unpack a tree of ../shared/rubies. Skip the test if its archive is missing."""
    archive = SHARED / "rubies" / f"ruby-{name.removesuffix('-stripped')}.tar.xz"
    if not archive.exists():
        pytest.skip(f"no archive {archive}")
    subprocess.run([rubies.SCRIPT, "unpack", archive], check=True, capture_output=True)


@functools.cache
def jit_options(words: tuple[str, ...], jit: str) -> tuple[str, ...]:
    """Return the options that turn ``jit`` on. Skip the test if the Ruby lacks it."""
    if not jit:
        return ()
    options = JITS[jit]
    said = subprocess.run([*words, *options, "-v"], capture_output=True, text=True)
    name = jit.partition("-")[0].upper()
    if f"+{name}" not in said.stdout:
        pytest.skip(f"this Ruby has no {name}")
    return options


def _is_before(version: str, program: str) -> bool:
    words = [program, "--disable-gems", "-e", "print RUBY_VERSION"]
    return subprocess.check_output(words, text=True) < version


def _builds(names: Sequence[str] = rubies.NAMES) -> list[Any]:
    builds = [Build(rubies.HERE, "yjit"), *map(Build, names), *map(Build, TREES)]
    builds += [Build(name, "yjit") for name in TREES]
    builds += [Build(name, "zjit") for name in TREES if name.startswith("4")]
    builds.append(Build("4.1.0dev-shared", "zjit-default"))
    others = [pytest.param(build, marks=pytest.mark.rubies) for build in builds]
    return [Build(rubies.HERE), *others]


def _each(builds: list[Any]) -> Any:
    return pytest.mark.parametrize("build", builds, ids=str, scope="module")


_GIVEN = os.environ.get("RBTRACE_RUBY", "")
_HAS_OLD = bool(_GIVEN) and _is_before("2.7", _GIVEN)
_HAS_NO_RACTORS = bool(_GIVEN) and _is_before("3.0", _GIVEN)
_OF_GIVEN = [Build(_GIVEN, jit) for jit in ("", *JITS)]

each_build = _each(([] if _HAS_OLD else _OF_GIVEN) if _GIVEN else _builds())
"""For tests of features on each Ruby. All parameters but one are marked ``rubies``."""
_WITH_RACTORS = [name for name in rubies.NAMES if name != "2.7"]
each_build_with_ractors = _each(
    ([] if _HAS_NO_RACTORS else _OF_GIVEN) if _GIVEN else _builds(_WITH_RACTORS)
)
_NO_OLD = pytest.mark.skip("RBTRACE_RUBY names no Ruby up to 2.6")
each_old_build = _each(
    [pytest.param(Build(_GIVEN), marks=[] if _HAS_OLD else [_NO_OLD])]
)
"""For tests of Rubies up to 2.6, which are read but not traced."""


@contextmanager
def running(build: Build, script: str, *arguments: str) -> Iterator[rubies.Running]:
    """Start targets/SCRIPT in a Ruby, and end it afterwards."""
    target = Target(*build.words(), str(TARGETS / script), *arguments)
    try:
        yield rubies.Running(target, innermost(target.pid))
    finally:
        target.close()


def innermost(pid: int) -> int:
    """Return the innermost program that a chain of scripts has started."""
    while words := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(words[0])
    return pid


def build_gem(build: Build) -> None:
    """Compile the gem's extension for a Ruby, into the folder of its ABI."""
    script = "scripts/build-extension.sh"
    if build.is_tree:
        folder = str(build.program.parent)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        words = [str(ROOT / script)]
    else:
        environment = dict(os.environ)
        words = [script] if build.name == rubies.HERE else []
        words = words or [str(rubies.SCRIPT), "run", build.name, script]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@functools.cache
def _with_agent(build: Build) -> list[str]:
    words = build.words()
    build_gem(build)
    return words


_JITTED = [
    Build(name, jit)
    for name in ("4.0.5-shared", "4.1.0dev-shared")
    for jit in ("yjit", "zjit")
]
_BESIDE = [
    Build(rubies.HERE, "yjit"),
    *map(Build, ARCHIVES),
    Build("3.2.8-shared", "yjit"),
]
rubies.BUILT.update(
    {str(one): functools.partial(_with_agent, one) for one in (*_JITTED, *_BESIDE)}
)
EACH = (*rubies.EACH, *map(rubies.chroot, map(str, _JITTED)))
"""To parametrize a test of the agent: as rubies.EACH, and where JITs compile all."""
MATRIX = (*EACH, *map(rubies.chroot, map(str, _BESIDE)))
"""To parametrize one of how methods are hooked: each minor version, JITs off and on."""


def core_of(pid: int, folder: Path) -> Path:
    """Return a core file of a process, made by gdb."""
    if shutil.which("gcore") is None:
        pytest.skip("needs gdb's gcore")
    words = ["gcore", "-o", str(folder / "core"), str(pid)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    core = folder / f"core.{pid}"
    assert core.exists(), done.stderr
    # If one page is unreadable, gdb writes zeros for its whole mapping. This is always
    # so for [vvar], and for stacks that glibc 2.42 guards (MADV_GUARD_INSTALL).
    failed = re.findall(r"read failed for corefile section, (\d+) bytes", done.stderr)
    if any(int(size) > _LARGEST_VVAR for size in failed):
        pytest.skip("this gdb writes zeros for mappings with guard pages")
    return core
