"""Memory and threads that the cgroups of a process still allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process

_MOUNTS = Path("/proc/self/mountinfo")
_MEMINFO = Path("/proc/meminfo")
_NAMES = {
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    "cgroup2": ("memory.max", "memory.current"),
}
"""Files with the limit and the usage, by file system."""
_RECLAIMABLE = {
    "cgroup": {"total_inactive_file", "total_active_file"},
    "cgroup2": {"inactive_file", "active_file", "slab_reclaimable"},
}
"""Lines of memory.stat: memory that the kernel reclaims before it kills a process."""
_DEEPEST = 64


def memory_room(process: Process) -> int | None:
    """Return the free bytes for ``process``, or None if they are unknown.

    The page cache and reclaimable slabs do not count as used: the kernel reclaims them
    when memory runs out, and reading files fills any limit.
    """
    rooms = [*_rooms_of_cgroups(process), *_available()]
    return min(rooms, default=None)


def thread_room(process: Process) -> int | None:
    """Return how many more threads ``process`` may start (pids.max); None: no limit."""
    rooms = (
        most - now
        for folder, _ in _cgroups(process, "pids")
        for most in _number(_text(folder / "pids.max"))
        for now in _number(_text(folder / "pids.current"))
    )
    return min((max(room, 0) for room in rooms), default=None)


def _available() -> Iterator[int]:
    """Yield MemAvailable in bytes."""
    for line in _text(_MEMINFO).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield from (1024 * number for number in _number(rest.removesuffix("kB")))


def ends_together(process: Process) -> bool:
    """Return whether the kernel kills the whole cgroup on OOM (memory.oom.group)."""
    paths = (folder / "memory.oom.group" for folder, _ in _cgroups(process, "memory"))
    return any(_text(path).strip() == "1" for path in paths)


def _rooms_of_cgroups(process: Process) -> Iterator[int]:
    for folder, kind in _cgroups(process, "memory"):
        yield from _room(folder, kind)


def _cgroups(process: Process, controller: str) -> Iterator[tuple[Path, str]]:
    """Yield the process's cgroup and its visible ancestors."""
    try:
        lines = process.read("cgroup").decode("utf-8", "surrogateescape").splitlines()
    except RbtraceError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not path.startswith("/"):
            continue
        if not controllers or controller in controllers.split(","):
            kind = "cgroup" if controllers else "cgroup2"
            folders = _folders(path, kind, controller)
            yield from ((folder, kind) for folder in folders)


def _folders(path: str, kind: str, controller: str) -> Iterator[Path]:
    for root, mounted in _mounts(kind, controller):
        inner = Path(path)
        if root != "/" and inner.is_relative_to(root):
            inner = Path("/") / inner.relative_to(root)
        if ".." in inner.parts:
            continue  # outside the visible hierarchy
        at = Path(mounted) / inner.relative_to("/")
        for folder in (at, *at.parents)[:_DEEPEST]:
            yield folder
            if folder == Path(mounted):
                break


def _room(folder: Path, kind: str) -> Iterator[int]:
    limit, used = _NAMES[kind]
    for most in _number(_text(folder / limit)):
        for now in _number(_text(folder / used)):
            yield max(most - now + min(_reclaimable(folder, kind), now), 0)


def _reclaimable(folder: Path, kind: str) -> int:
    lines = _text(folder / "memory.stat").splitlines()
    parts = (line.partition(" ") for line in lines)
    names = _RECLAIMABLE[kind]
    return sum(
        size for name, _, text in parts if name in names for size in _number(text)
    )


def _mounts(kind: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield the root and mount point of each mount of this file system (proc(5))."""
    for line in _text(_MOUNTS).splitlines():
        before, _, after = line.partition(" - ")
        fields, words = before.split(), after.split()
        if len(fields) < 5 or len(words) < 3 or words[0] != kind:
            continue
        if kind == "cgroup2" or controller in words[2].split(","):
            yield fields[3], fields[4]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


def _number(text: str) -> Iterator[int]:
    """Yield the number, or nothing for ``max`` (unlimited)."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        yield int(text)
