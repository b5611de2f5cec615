"""Cache of results that were computed from files.

A key is made of the file's contents, never of its name or its build-id, which can be
forged. An entry begins with a checksum. A damaged entry counts as missing, so that its
user computes it again and replaces it. No state of the cache is an error.
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
"""Bytes of an entry that are read."""
_HASH = hashlib.sha256().digest_size
"""Bytes of the checksum at the start of an entry."""

_BLOCK = 1 << 20


def content_hash(fd: int, limit: int) -> str | None:
    """Return the SHA-256 of a file's contents in hex; None beyond ``limit`` bytes.

    Leaves the descriptor's position alone. Raises OSError.
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
    """Return what ``store`` was given; None if it is missing, damaged, or not ours."""
    return json.loads(read(_directory(kind), f"{key}.json") or b"null")


def store(kind: str, key: str, value: object) -> None:
    """Keep a JSON value; where that cannot be done, do nothing."""
    write(_directory(kind), f"{key}.json", json.dumps(value).encode("ascii"))


def read(place: Path | None, name: str) -> bytes | None:
    """Return what ``write`` was given; None if it is missing, damaged, or not ours."""
    if place is None:
        return None
    entry = _read_ours(place / name)
    data = entry[_HASH:]
    return data if entry == _entry(place, name, data) else None


def write(place: Path | None, name: str, data: bytes) -> None:
    """Write an entry atomically; where that cannot be done, do nothing."""
    if place is not None:
        with suppress(OSError):
            _replace(place / name, _entry(place, name, data))


def _entry(place: Path, name: str, data: bytes) -> bytes:
    """Return ``data`` behind its checksum.

    It covers the entry's kind and name, too. A copy of another entry therefore fails.
    """
    path = f"{place.name}/{name}\0".encode()
    return hashlib.sha256(path + data).digest() + data


def store_file(kind: str, key: str, name: str, data: bytes) -> Path | None:
    """Keep ``data`` as a file, ``key``/``name``, for other programs to read.

    Such a file has no checksum: each call compares it with ``data``.

    Returns:
        The folder ``key``; None where the file cannot be kept.
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
    """Return the contents of a regular file that is ours alone; else nothing."""
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
    """Return the folder for caches of this user's programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _directory(kind: str) -> Path | None:
    """``$XDG_CACHE_HOME/rbtrace-py/KIND`` if it and what it is in are ours alone.

    With sudo the home may be another user's, who could turn it into a link to
    anywhere, or write into it what we would believe: then there is no cache.
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
    """``BASE/KIND``, made if it is not there, if both are ours alone."""
    try:
        for place in (base, base / kind):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _only_ours(place.lstat()):
                return None
    except OSError:
        return None
    return base / kind


def _only_ours(status: os.stat_result) -> bool:
    """Ours, not a link, and nobody else can write to it."""
    return (
        not stat.S_ISLNK(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )
