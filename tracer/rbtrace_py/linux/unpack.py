"""Decompression of a file for random access."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import tempfile
import zlib

from rbtrace_py.errors import BadElf, NotPermitted, RbtraceError

LARGEST = 64 << 30
"""Maximum number of decompressed bytes."""

_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\xfd7zXZ\0": "xz -d",
    b"\x04\x22\x4d\x18": "lz4 -d",
    b"BZh": "bzip2 -d",
}
_CHUNK = 1 << 18


def open_unpacked(path: str, limit: int = LARGEST) -> tuple[int, bool]:
    """Open ``path``, decompressing gzip into an unnamed sparse file in TMPDIR.

    Args:
        path: Path of the file.
        limit: Maximum decompressed size in bytes.

    Returns:
        A descriptor, which the caller closes, and whether compressed data was
        truncated.

    Raises:
        BadElf: The data is damaged or exceeds ``limit``.
        NotPermitted: We may not read the file.
        RbtraceError: The file does not exist, or the disk is full.
    """
    fd = open_regular(path)
    try:
        head = os.pread(fd, 8, 0)
        for magic, command in _OTHERS.items():
            if head.startswith(magic):
                raise BadElf(
                    f"{path} is compressed in an unsupported format",
                    f"Decompress it first: {command}",
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
    """Open a file, but only a regular one, because opening a FIFO would block.

    The caller closes the descriptor. Raises NotPermitted or RbtraceError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError as error:
        raise NotPermitted(f"not allowed to read {path}") from error
    except OSError as error:
        raise RbtraceError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RbtraceError(f"{path} is not a regular file")
    return fd


def _unpack(fd: int, path: str, limit: int) -> tuple[int, bool]:
    try:
        target, name = tempfile.mkstemp(prefix="rbtrace-core-")
    except OSError as error:
        raise _no_room(path, error) from error
    os.unlink(name)
    try:
        return target, _copy(fd, target, path, limit)
    except (zlib.error, gzip.BadGzipFile) as error:
        os.close(target)
        raise BadElf(f"{path}: damaged gzip data ({error})") from error
    except OSError as error:
        os.close(target)
        raise _no_room(path, error) from error
    except BaseException:
        os.close(target)
        raise


def _no_room(path: str, error: OSError) -> RbtraceError:
    where = tempfile.gettempdir()
    hint = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "Decompress it elsewhere, or set TMPDIR to a place with more space"
    return RbtraceError(f"cannot decompress {path} in {where}: {error.strerror}", hint)


def _copy(fd: int, target: int, path: str, limit: int) -> bool:
    """Decompress the file; return whether it was truncated."""
    written = 0
    is_cut = False
    with open(fd, "rb", closefd=False) as packed, gzip.open(packed) as source:
        try:
            while data := source.read1(_CHUNK):
                if written + len(data) > limit:
                    raise BadElf(
                        f"{path} is larger than {limit >> 20} MiB when decompressed",
                        "Decompress it first if it is really that large",
                    )
                _write_sparse(target, data, written)
                written += len(data)
        except EOFError:
            is_cut = True
    os.ftruncate(target, written)
    return is_cut


def _write_sparse(fd: int, data: bytes, at: int) -> None:
    """Write nonzero data at ``at``; the caller extends the file at the end."""
    if not data.strip(b"\0"):
        return
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done
