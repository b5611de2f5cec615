"""Caches: each rebuilds a damaged entry, and repairs its file; how to clear them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import ROOT, TIMEOUT
from rbtrace_py.agent.hook import hook
from rbtrace_py.agent.starting import options
from rbtrace_py.bpf.compiler import compile_program
from rbtrace_py.linux import cache
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.rubyvm.dwarf.fields import fields_from_dwarf
from rbtrace_py.rubyvm.layouts import table_for

FIBER = """
typedef struct rb_fiber_struct {
    long before[10]; struct rb_fiber_struct *prev;
} rb_fiber_t;
rb_fiber_t fiber;
"""


def offsets(folder: Path) -> object:
    """Return offsets from the DWARF of a library."""
    (folder / "cont.c").write_text(FIBER)
    words = ["gcc", "-g", "-fPIC", "-shared", "-o", "libruby.so", "cont.c"]
    subprocess.run(words, cwd=folder, check=True)
    path = folder / "libruby.so"
    with path.open("rb") as file:
        fd = file.fileno()
        table = table_for("3.1.2")
        found = fields_from_dwarf(ElfFile(fd), fd, os.fsencode(path), [], table)
    assert found is not None
    return found.fields


def flipped(entry: bytes) -> bytes:
    """Flip one bit: the last digit becomes another one, in numbers, hex, and Base64."""
    *_, digit = re.finditer(rb"\d", entry)
    place = digit.start()
    return entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]


def cut(entry: bytes) -> bytes:
    return entry[: len(entry) // 2]


def deep(entry: bytes) -> bytes:
    """Return JSON that Python's parser refuses with a RecursionError."""
    return b"[" * 100_000


def old(entry: bytes) -> bytes:
    """Return an entry as versions without checksums wrote it."""
    return entry[32:]


CACHES: dict[str, tuple[Callable[[Path], object], str]] = {
    "programs": (lambda folder: compile_program("tracked_pids.c", {}), "programs/*"),
    "hook": (lambda folder: hook(), "rbtrace-py/agent/*"),
    "offsets": (offsets, "rbtrace-py/dwarf/*"),
    "hook for RUBYOPT": (lambda folder: options(), "rbtrace-py/hook/*/*/*"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("RBTRACE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", CACHES)
def test_a_damaged_entry_is_rebuilt(name: str, home: Path) -> None:
    """After each damage the answer is the same, and so is the entry."""
    compute, pattern = CACHES[name]
    answer = compute(home)
    (entry,) = home.glob(pattern)
    whole = entry.read_bytes()
    for damage in (flipped, cut, deep, old):
        entry.write_bytes(damage(whole))
        assert compute(home) == answer, damage.__name__
        assert entry.read_bytes() == whole, damage.__name__


@pytest.mark.parametrize("kind", ["file", "link", "FIFO"])
@pytest.mark.parametrize("name", CACHES)
def test_a_foreign_file_is_replaced(name: str, kind: str, home: Path) -> None:
    """The entry is a copy of another one, a link to the right contents, or a FIFO."""
    compute, pattern = CACHES[name]
    answer = compute(home)
    (entry,) = home.glob(pattern)
    whole = entry.read_bytes()
    moved = entry.rename(home / "moved")
    if kind == "FIFO":
        os.mkfifo(entry, 0o600)
    elif kind == "link":
        entry.symlink_to(moved)
    else:
        cache.write(entry.parent, "other", b'"of another key"')
        (entry.parent / "other").rename(entry)
    assert compute(home) == answer
    assert not entry.is_symlink()
    assert entry.read_bytes() == whole


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A change of the size, the name, or the kind is noticed, too."""
    place = cache.directory_in(tmp_path, "kind")
    assert place is not None
    cache.write(place, "name", b"12345")
    entry = place / "name"
    whole = entry.read_bytes()
    assert cache.read(place, "name") == b"12345"
    damaged = [whole[:size] for size in range(len(whole))] + [whole + b"\0"]
    for index, byte in enumerate(whole):
        changed = bytes([byte ^ 0x80])
        damaged.append(whole[:index] + changed + whole[index + 1 :])
    for each in damaged:
        entry.write_bytes(each)
        assert cache.read(place, "name") is None
    entry.write_bytes(whole)
    assert cache.read(place, "name") == b"12345"
    assert cache.directory_in(tmp_path, "other") is not None
    (tmp_path / "other" / "name").write_bytes(whole)
    (place / "mane").write_bytes(whole)
    assert cache.read(tmp_path / "other", "name") is None
    assert cache.read(place, "mane") is None


CLEARED = """
set -eu
mkdir -p /root/.cache
for folder in /var/cache /root/.cache; do mount -t tmpfs -o mode=755 none $folder; done
export HOME=/root
{compute}
test -n "$(ls /var/cache/rbtrace-py/programs)" -a -n "$(ls ~/.cache/rbtrace-py/agent)"
sudo() {{ "$@"; }}
{page}
ls -A /var/cache ~/.cache
"""
COMPUTE = """
from rbtrace_py.agent.hook import hook
from rbtrace_py.bpf.compiler import compile_program
hook()
compile_program("tracked_pids.c", {})
"""


@pytest.mark.usefixtures("root")
def test_the_commands_that_clear_the_caches() -> None:
    """docs/install.md lists these commands, because pip keeps the caches."""
    page = (ROOT / "docs/install.md").read_text("utf-8")
    (commands,) = re.findall(r"^```\n((?:.*rm -rf.*\n)+)```$", page, re.M)
    compute = shlex.join([sys.executable, "-c", COMPUTE])
    script = CLEARED.format(compute=compute, page=commands)
    unset = ("XDG_CACHE_HOME", "RBTRACE_CACHE_DIR")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env={**env, "PYTHONPATH": str(ROOT / "tracer")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stdout) == (0, "/root/.cache:\n\n/var/cache:\n"), done
