"""Resolution of a process's paths that never leaves its root directory."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
"""include/uapi/linux/openat2.h."""
_TRIES = 8
_libc = ctypes.CDLL(None, use_errno=True)


def open_directory_in_root(root: int, path: str) -> int:
    """Open a directory as ``open_in_root`` does; raises OSError."""
    return open_in_root(root, path, os.O_DIRECTORY)


def open_in_root(root: int, path: str | bytes, kind: int = 0) -> int:
    """Open ``path`` with O_PATH, which neither blocks nor has side effects.

    Args:
        root: Descriptor of the directory in which ``path`` and all its links are
            resolved.
        path: Path of a file or a directory.
        kind: O_DIRECTORY to refuse everything but a directory.

    Returns:
        A descriptor of the file. Before Linux 5.6 it may be a link.

    Raises:
        OSError: The path does not exist. Before Linux 5.6 also if a directory in it is
            a link (ELOOP or ENOTDIR).
    """
    for _ in range(_TRIES):
        try:
            return _openat2(root, path, os.O_PATH | kind | os.O_CLOEXEC)
        except OSError as error:
            # An old seccomp filter answers EPERM to a new system call.
            if error.errno in (errno.ENOSYS, errno.EPERM):
                return _walk(root, path, kind)
            # A directory was renamed during the resolution.
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _openat2(root: int, path: str | bytes, flags: int) -> int:
    """Call openat2 with a ``struct open_how``: flags, mode, resolve."""
    how = struct.pack("=QQQ", flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path)
    fd = _libc.syscall(_OPENAT2, root, name, how, ctypes.c_size_t(len(how)))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def _walk(root: int, path: str | bytes, kind: int) -> int:
    """Open one path component after the other; links and ``..`` are errors."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    found = os.open(".", flags | os.O_DIRECTORY, dir_fd=root)
    *directories, last = os.fsdecode(path).strip("/").split("/")
    kinds = [*((name, os.O_DIRECTORY) for name in directories), (last, kind)]
    for name, its_kind in kinds:
        try:
            if name == "..":
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            inner = os.open(name or ".", flags | its_kind, dir_fd=found)
        finally:
            os.close(found)
        found = inner
    return found
