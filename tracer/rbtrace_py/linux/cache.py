"""Cache of results computed from files.

A key is derived from the file's contents, because its name and build-id can be forged.
An entry begins with a checksum. A damaged entry counts as missing, so it is computed
again and replaced. No state of the cache is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

_LARGEST = 1 << 24
"""Maximum number of bytes read from an entry."""
_HASH = hashlib.sha256().digest_size
"""Bytes of the checksum at the start of an entry."""

_BLOCK = 1 << 20


def content_hash(fd: int, limit: int) -> str | None:
    """Return the SHA-256 of a file's contents in hex; None beyond ``limit`` bytes.

    The descriptor's position does not change. Raises OSError.
    """
    digest = hashlib.sha256()
    offset = 0
    while block := os.pread(fd, _BLOCK, offset):
        digest.update(block)
        offset += len(block)
        if offset > limit:
            return None
    return digest.hexdigest()


def load(kind: str, key: str) -> Any:
    """Return a stored value; None if it is missing, damaged, or not owned by us."""
    return json.loads(read(_directory(kind), f"{key}.json") or b"null")


def store(kind: str, key: str, value: object) -> None:
    """Store a JSON value; do nothing if that fails."""
    write(_directory(kind), f"{key}.json", json.dumps(value).encode("ascii"))


def read(place: Path | None, name: str) -> bytes | None:
    """Return a written entry; None if it is missing, damaged, or not owned by us."""
    if place is None:
        return None
    entry = _read_ours(place / name)
    data = entry[_HASH:]
    return data if entry == _entry(place, name, data) else None


def write(place: Path | None, name: str, data: bytes) -> None:
    """Write an entry atomically; do nothing if that fails."""
    if place is not None:
        with suppress(OSError):
            _replace(place / name, _entry(place, name, data))


def _entry(place: Path, name: str, data: bytes) -> bytes:
    """Return ``data`` after its checksum.

    The checksum includes the entry's kind and name, so a copy of another entry is
    invalid.
    """
    path = f"{place.name}/{name}\0".encode()
    return hashlib.sha256(path + data).digest() + data


def store_file(kind: str, key: str, name: str, data: bytes) -> Path | None:
    """Store ``data`` as the file ``key``/``name``, for other programs to read.

    The file has no checksum; each call compares its contents with ``data``.

    Returns:
        The folder ``key``, or None if the file cannot be stored.
    """
    place = _directory(kind)
    if place is None:
        return None
    path = place / key / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _read_ours(path) != data:
            _replace(path, data)
    except OSError:
        return None
    return place / key


def _replace(path: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _read_ours(path: Path) -> bytes:
    """Return the contents of a regular file that only we can write, else b""."""
    try:
        with open(path, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())
            is_ours = stat.S_ISREG(status.st_mode) and _only_ours(status)
            return file.read(_LARGEST) if is_ours else b""
    except OSError:
        return b""


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def home() -> Path:
    """Return the cache directory of this user's programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _directory(kind: str) -> Path | None:
    """Return ``$XDG_CACHE_HOME/rbtrace-py/KIND`` if only we can write to it, else None.

    With sudo, the home may belong to another user, who could replace it with a link or
    write forged entries into it. Then there is no cache.
    """
    place = home()
    try:
        if place.is_absolute() and place.parent.stat().st_uid == os.geteuid():
            place.mkdir(exist_ok=True, mode=0o700)
        if not place.is_absolute() or not _only_ours(place.lstat()):
            return None
    except OSError:
        return None
    return directory_in(place / "rbtrace-py", kind)


def directory_in(base: Path, kind: str) -> Path | None:
    """Create ``BASE/KIND`` if needed; return it if only we can write to both."""
    try:
        for place in (base, base / kind):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _only_ours(place.lstat()):
                return None
    except OSError:
        return None
    return base / kind


def _only_ours(status: os.stat_result) -> bool:
    """Return whether a path is ours, not a link, and not writable by others."""
    return (
        not stat.S_ISLNK(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )
