"""Memory that a process may still use, by copies of the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rbtrace_py.linux import cgroup_limits
from rbtrace_py.linux.cgroup_limits import ends_together, memory_room, thread_room
from rbtrace_py.linux.process import Process

MIB = 1 << 20


class Files:
    """mountinfo, meminfo and cgroups in a folder; ``room`` of a process in them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setattr(cgroup_limits, "_MOUNTS", folder / "mountinfo")
        monkeypatch.setattr(cgroup_limits, "_MEMINFO", folder / "meminfo")
        (folder / "meminfo").write_text("MemFree: 1 kB\nMemAvailable:  204800 kB\n")

    def mount(self, kind: str, root: str, options: str) -> None:
        text = f"31 23 0:28 {root} {self.folder} rw - {kind} {kind} {options}\n"
        (self.folder / "mountinfo").write_text(text)

    def cgroup(self, path: str, files: dict[str, object]) -> None:
        at = self.folder / path
        at.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (at / name).write_text(f"{text}\n")

    def room(self, cgroup: str) -> int | None:
        process: Any = SimpleNamespace(read=lambda name: cgroup.encode())
        return memory_room(process)

    def ends_together(self, cgroup: str) -> bool:
        process: Any = SimpleNamespace(read=lambda name: cgroup.encode())
        return ends_together(process)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def test_cgroups_that_end_together(files: Files) -> None:
    files.mount("cgroup2", "/", "rw")
    files.cgroup("a/b", {"memory.oom.group": 0})
    assert not files.ends_together("0::/a/b\n")
    files.cgroup("a", {"memory.oom.group": 1})
    assert files.ends_together("0::/a/b\n")


def test_second_version(files: Files) -> None:
    files.mount("cgroup2", "/", "rw")
    inner = {"memory.max": 64 * MIB, "memory.current": 40 * MIB}
    files.cgroup("a/b", {**inner, "memory.stat": f"anon 1\ninactive_file {MIB}"})
    assert files.room("0::/a/b\n") == 25 * MIB
    files.cgroup("a", {"memory.max": 50 * MIB, "memory.current": 45 * MIB})
    assert files.room("0::/a/b\n") == 5 * MIB
    files.cgroup("a", {"memory.max": "max", "memory.current": 45 * MIB})
    files.cgroup("a/b", {"memory.max": 10 * MIB})
    assert files.room("0::/a/b\n") == 0
    assert files.room("0::/a/other\n") == 200 * MIB


def test_first_version(files: Files) -> None:
    files.mount("cgroup", "/", "rw,cpu,memory")
    used = {"memory.limit_in_bytes": 64 * MIB, "memory.usage_in_bytes": 4 * MIB}
    files.cgroup("a", {**used, "memory.stat": f"total_inactive_file {2 * MIB}"})
    assert files.room("7:pids:/b\n4:memory,cpu:/a\n0::/\n") == 62 * MIB
    assert files.room("7:pids:/a\n") == 200 * MIB


def test_page_cache_fills_the_cgroup(files: Files) -> None:
    """This happens to a container that reads its files again and again."""
    files.mount("cgroup2", "/", "rw")
    stat = f"anon {9 * MIB}\nactive_file {50 * MIB}\nslab_reclaimable {5 * MIB}"
    full = {"memory.max": 64 * MIB, "memory.current": 64 * MIB}
    files.cgroup("a", {**full, "memory.stat": f"{stat}\nslab_unreclaimable {MIB}"})
    assert files.room("0::/a\n") == 55 * MIB
    files.cgroup("a", {"memory.stat": f"active_file {1 << 62}"})
    assert files.room("0::/a\n") == 64 * MIB


def test_page_cache_fills_a_cgroup_of_the_first_version(files: Files) -> None:
    files.mount("cgroup", "/", "rw,memory")
    full = {"memory.limit_in_bytes": 64 * MIB, "memory.usage_in_bytes": 64 * MIB}
    stat = f"active_file 1\ntotal_active_file {50 * MIB}\ntotal_inactive_file {MIB}"
    files.cgroup("a", {**full, "memory.stat": stat})
    assert files.room("4:memory:/a\n") == 51 * MIB


def test_part_of_the_cgroups_is_mounted(files: Files) -> None:
    """A container sees only its own part of the hierarchy."""
    files.mount("cgroup2", "/docker/1", "rw")
    files.cgroup("a", {"memory.max": 9 * MIB, "memory.current": MIB})
    assert files.room("0::/docker/1/a\n") == 8 * MIB
    assert files.room("0::/../../a\n") == 200 * MIB


def test_a_cgroup_without_valid_limits(files: Files) -> None:
    (files.folder / "meminfo").unlink()
    assert files.room("0::/a\n") is None
    files.mount("cgroup2", "/", "rw")
    files.cgroup("a", {"memory.max": "-1", "memory.current": "much"})
    assert files.room("0::/a\nnonsense\n") is None


def test_the_memory_room_of_a_process() -> None:
    with Process(os.getpid()) as process:
        room = memory_room(process)
    assert room is not None
    assert room > 0


def test_threads(files: Files) -> None:
    process: Any = SimpleNamespace(read=lambda name: b"7:pids:/a/b\n")
    files.mount("cgroup", "/", "rw,pids")
    assert thread_room(process) is None
    files.cgroup("a/b", {"pids.max": "max", "pids.current": 7})
    assert thread_room(process) is None
    files.cgroup("a", {"pids.max": 9, "pids.current": 7})
    assert thread_room(process) == 2
    files.cgroup("a/b", {"pids.max": 6})
    assert thread_room(process) == 0
