"""How much memory a process may still take, by its cgroups' limits or what is free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process

_MOUNTS = Path("/proc/self/mountinfo")
_MEMINFO = Path("/proc/meminfo")
_NAMES = {
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
}
"""By file system: the limit, what is used, and what of that goes first."""
_DEEPEST = 64


def memory_room(process: Process) -> int | None:
    """Bytes that are free for ``process``; None if the system does not tell.

    What is used of a cgroup's limit counts without files that nobody has read for a
    while, as the kernel gives these up first.
    """
    rooms = [*_rooms_of_cgroups(process), *_available()]
    return min(rooms, default=None)


def _available() -> Iterator[int]:
    """MemAvailable, in kB."""
    for line in _text(_MEMINFO).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield from (1024 * number for number in _number(rest.removesuffix("kB")))


def _rooms_of_cgroups(process: Process) -> Iterator[int]:
    """Of the process's cgroup and those around it, as far up as we see them."""
    try:
        lines = process.read("cgroup").decode("utf-8", "surrogateescape").splitlines()
    except RbtraceError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not path.startswith("/"):
            continue
        if not controllers or "memory" in controllers.split(","):
            yield from _rooms(path, "cgroup" if controllers else "cgroup2")


def _rooms(path: str, kind: str) -> Iterator[int]:
    for root, mounted in _mounts(kind):
        inner = Path(path)
        if root != "/" and inner.is_relative_to(root):
            inner = Path("/") / inner.relative_to(root)
        if ".." in inner.parts:
            continue  # it is outside of what we see
        at = Path(mounted) / inner.relative_to("/")
        for folder in (at, *at.parents)[:_DEEPEST]:
            yield from _room(folder, *_NAMES[kind])
            if folder == Path(mounted):
                break


def _room(folder: Path, limit: str, used: str, inactive: str) -> Iterator[int]:
    for most in _number(_text(folder / limit)):
        for now in _number(_text(folder / used)):
            yield max(most - now + min(_inactive(folder, inactive), now), 0)


def _inactive(folder: Path, name: str) -> int:
    words = (line.split() for line in _text(folder / "memory.stat").splitlines())
    found = (word[1] for word in words if len(word) == 2 and word[0] == name)
    return sum(_number(next(found, "")))


def _mounts(kind: str) -> Iterator[tuple[str, str]]:
    """Of file systems of a kind (proc(5)): what of it, and where."""
    for line in _text(_MOUNTS).splitlines():
        before, _, after = line.partition(" - ")
        fields, words = before.split(), after.split()
        if len(fields) < 5 or len(words) < 3 or words[0] != kind:
            continue
        if kind == "cgroup2" or "memory" in words[2].split(","):
            yield fields[3], fields[4]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


def _number(text: str) -> Iterator[int]:
    """One, or none: ``max`` is no limit."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        yield int(text)
