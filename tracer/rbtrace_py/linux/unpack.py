"""A file that may be compressed, as one that can be read anywhere."""

from __future__ import annotations

import errno
import gzip
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
    """Unpack all of it; was it cut short?"""
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
    """Write at ``at`` what is not zero; the file is made longer at the end."""
    if not data.strip(b"\0"):
        return
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done
