"""A file that may be compressed, as one that can be read anywhere."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import zlib

from rbtrace_py.errors import BadElf, NotPermitted, RbtraceError

LARGEST = 64 << 30
"""Bytes that are unpacked at most."""

_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\xfd7zXZ\0": "xz -d",
    b"\x04\x22\x4d\x18": "lz4 -d",
    b"BZh": "bzip2 -d",
}
_CHUNK = 1 << 18


def open_unpacked(path: str, limit: int = LARGEST) -> tuple[int, bool]:
    """Open ``path``; a descriptor, and whether a packed file was cut short.

    gzip is unpacked into a file without a name, in TMPDIR, in which zeroes take no
    room. Raises BadElf (damaged, or more than ``limit``), NotPermitted, RbtraceError
    (no such file, no room); the caller closes the descriptor.
    """
    fd = open_regular(path)
    try:
        head = os.pread(fd, 8, 0)
        for magic, command in _OTHERS.items():
            if head.startswith(magic):
                raise BadElf(
                    f"{path} is compressed in a way that is not read here",
                    f"unpack it first: {command}",
                )
        if not head.startswith(_GZIP):
            return fd, False
        unpacked = _unpack(fd, path, limit)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return unpacked


def open_regular(path: str) -> int:
    """Open a regular file only, as opening a FIFO would wait.

    Raises NotPermitted, RbtraceError; the caller closes the descriptor.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError as error:
        raise NotPermitted(f"not allowed to read {path}") from error
    except OSError as error:
        raise RbtraceError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RbtraceError(f"{path} is no regular file")
    return fd


def _unpack(fd: int, path: str, limit: int) -> tuple[int, bool]:
    try:
        target, name = tempfile.mkstemp(prefix="rbtrace-core-")
    except OSError as error:
        raise _no_room(path, error) from error
    os.unlink(name)
    try:
        is_cut = _copy(fd, target, path, limit)
    except zlib.error as error:
        os.close(target)
        raise BadElf(f"{path}: damaged gzip data ({error})") from error
    except OSError as error:
        os.close(target)
        raise _no_room(path, error) from error
    except BaseException:
        os.close(target)
        raise
    return target, is_cut


def _no_room(path: str, error: OSError) -> RbtraceError:
    where = tempfile.gettempdir()
    hint = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "unpack it where there is room, or set TMPDIR to such a place"
    return RbtraceError(f"cannot unpack {path} in {where}: {error.strerror}", hint)


def _copy(fd: int, target: int, path: str, limit: int) -> bool:
    """Unpack all members; was the last one cut short?"""
    written = 0
    source = _Source(fd)
    unpacker = zlib.decompressobj(31)
    while packed := source.take():
        data = unpacker.decompress(packed, _CHUNK)
        written += len(data)
        if written > limit:
            raise BadElf(
                f"{path} unpacks to more than {limit >> 20} MiB",
                "if it is so large, unpack it first",
            )
        _write_sparse(target, data, written - len(data))
        source.put_back(unpacker.unconsumed_tail)
        if unpacker.eof:
            source.put_back(unpacker.unused_data)
            if not source.has(_GZIP):
                break  # the end, or what pads it
            unpacker = zlib.decompressobj(31)
    os.ftruncate(target, written)
    return not unpacker.eof


class _Source:
    """A file in chunks, parts of which may be put back."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def take(self) -> bytes:
        data = os.pread(self._fd, _CHUNK, self._at)
        self._at += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        """``data`` is the end of what was taken last, and not used."""
        self._at -= len(data)

    def has(self, beginning: bytes) -> bool:
        return os.pread(self._fd, len(beginning), self._at) == beginning


def _write_sparse(fd: int, data: bytes, at: int) -> None:
    """Write at ``at`` what is not zero; the file is made longer at the end."""
    if not data.strip(b"\0"):
        return
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done
