"""Bounded reads of procfs and sysfs files."""

from __future__ import annotations

import os

_CHUNK = 1 << 16


def read_file(path: str, limit: int = 1 << 20, dir_fd: int | None = None) -> bytes:
    """Return up to ``limit`` bytes of ``path``; raises OSError as open and read do."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        return read_all(fd, limit)
    finally:
        os.close(fd)


def read_all(fd: int, limit: int) -> bytes:
    """Read from the current position of ``fd``, at most ``limit`` bytes."""
    chunks: list[bytes] = []
    left = limit
    while left > 0:
        chunk = os.read(fd, min(_CHUNK, left))
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def read_text(path: str, limit: int = 1 << 16) -> str | None:
    """Return the stripped text of a small file, or None if it cannot be read."""
    try:
        return read_file(path, limit).decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_int(path: str) -> int | None:
    """Return the integer in a small file, or None."""
    text = read_text(path, 64)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
